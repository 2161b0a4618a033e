"""Checks of arguments, shared: errors name the argument, what was got and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor

from oasis.buffers import check_buffer

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _got(value) -> str:
    plain = value is None or isinstance(value, (str, bool, int, float))
    return repr(value) if plain else type(value).__name__


def check_number(name: str, value, low: float, high: float, expected: str) -> float:
    """`value` as a float in (low, high), closed where an end is finite; bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {_got(value)}, expected {expected}")
    if not low <= value <= high or abs(value) == float("inf"):
        raise ValueError(f"{name}: got {value!r}, expected {expected}")
    return float(value)


def check_count(name: str, value, low: int = 0, bits: int = 63) -> int:
    """`value`, an integer in [low, 2^bits)."""
    expected = f"an integer in [{low}, 2^{bits})"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: got {_got(value)}, expected {expected}")
    if not low <= value < 1 << bits:
        raise ValueError(f"{name}: got {value!r}, expected {expected}")
    return int(value)


def check_float(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name}: got dtype {tensor.dtype}, expected float32, bfloat16, float16 or float64"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: got layout {tensor.layout}, expected a dense (strided) tensor")


def check_grads(grads: Sequence[Tensor], single: bool = False) -> None:
    """Per-sample gradients, one tensor [N, ...] per parameter, or a `single` one."""
    for i, g in enumerate(grads):
        name = "grads" if single else f"grads[{i}]"
        check_float(name, g)
        # A parameter that is a single number has a gradient [N]; alone it is more likely a mistake.
        if g.numel() == 0 or g.ndim < (2 if single else 1):
            raise ValueError(
                f"{name}: got shape {list(g.shape)}, expected [N, ...] with N >= 1 samples and at "
                "least one number per sample"
            )
        if g.shape[0] != grads[0].shape[0]:
            raise ValueError(
                f"{name}: got {g.shape[0]} samples, expected {grads[0].shape[0]} as in grads[0]"
            )
        check_buffer(name, g, FLOATS, None, grads[0].device)
