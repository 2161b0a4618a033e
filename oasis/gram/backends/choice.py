"""Which epilogue `head_gram` takes: compiled on the CPU, Triton or plain torch on a GPU."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from oasis.gram.backends.epilogue import Epilogue

# Written out where it is read: tests/core/test_doctor.py looks for it.
VARIABLE = "OASIS_HEAD_BACKEND"
CHOICES = ("triton", "torch")
_TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def tell_once(message: str) -> None:
    logging.getLogger("oasis").warning(message)


def _obstacle(device: torch.device) -> str:
    """Why Triton cannot run on this device; empty if it can."""
    if not _triton_installed():
        return "Triton is not installed"
    if device.type == "cpu":
        interpreting = os.environ.get("TRITON_INTERPRET") == "1"
        return "" if interpreting else "on a CPU Triton runs under TRITON_INTERPRET=1 only"
    if torch.version.hip:
        return "the Triton kernels are for NVIDIA GPUs"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "the Triton kernels need compute capability 8.0 or newer"
    return ""


def choose(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
    """("compiled", "triton" or "torch", why) for hidden states of this device and type.

    Raises:
        ValueError: OASIS_HEAD_BACKEND names no backend, or none for this type.
        RuntimeError: it names one that cannot run here.
    """
    asked = os.environ.get("OASIS_HEAD_BACKEND") or None
    if asked not in (None, *CHOICES):
        raise ValueError(f"{VARIABLE}: got {asked!r}, expected one of {', '.join(CHOICES)}")
    if asked == "torch":
        return "torch", f"asked for by {VARIABLE}"
    if asked is None and device.type == "cpu":
        return "compiled", "matrix products by torch, epilogue compiled"
    obstacle = _obstacle(device)
    if asked == "triton":
        if obstacle:
            raise RuntimeError(f"{VARIABLE}=triton: {obstacle}")
        if dtype not in _TRITON_TYPES:
            raise ValueError(
                f"{VARIABLE}=triton: got {dtype}, expected float32, bfloat16 or float16; unset it "
                "for other types"
            )
        return "triton", f"asked for by {VARIABLE}"
    if obstacle:
        tell_once(f"head_gram on a GPU falls back to plain torch: {obstacle}")
        return "torch", f"{obstacle}; GEMM and elementwise epilogue"
    if dtype not in _TRITON_TYPES:
        return "torch", f"the Triton kernels do not take {dtype}"
    return "triton", "matrix product by cuBLAS, epilogue and Gram by Triton (float64: torch)"


def check_float8(device: torch.device, dtype: torch.dtype) -> None:
    """ValueError where there are no tensor cores for float8 products of this type's entries."""
    name, why = choose(device, dtype)
    if name == "triton" and device.type == "cuda" and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 9):
            name, why = "none", f"this GPU has {capability[0]}.{capability[1]}"
    if name != "triton":
        raise ValueError(
            "method: got 'float8', which needs a GPU of compute capability 8.9 or newer and the "
            f"Triton kernels; here: {why}"
        )


def epilogue_type(backend: str) -> type[Epilogue]:
    """The class that "compiled" or "torch" stands for."""
    if backend == "compiled":
        from oasis.gram.backends import compiled

        return compiled.Epilogue
    from oasis.gram.backends import plain

    return plain.Epilogue


def triton_head_gram(*arguments: Any) -> tuple[Tensor, ...]:
    """`oasis.kernels.triton.head.head_gram`, imported where it is asked for alone."""
    # The build takes `kernels/` into the package, where a type checker does not see it.
    from oasis.kernels.triton import head  # pyright: ignore[reportMissingImports]

    results: tuple[Tensor, ...] = head.head_gram(*arguments)
    return results


def describe(device_type: str) -> tuple[str, str]:
    """(backend, why) for `oasis doctor`; a choice that cannot be met is a reason, no error."""
    try:
        name, why = choose(torch.device(device_type))
    except (RuntimeError, ValueError) as error:
        return "none", f"head_gram raises: {error}"
    return {"triton": "Triton + torch GEMM", "torch": "torch"}.get(name, name), why
