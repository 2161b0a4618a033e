"""Checks of arguments, shared: errors name the argument, what was got and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _got(value: object) -> str:
    plain = value is None or isinstance(value, (str, bool, int, float))
    return repr(value) if plain else type(value).__name__


def readable(tensor: Tensor) -> bool:
    """Whether a number of `tensor` can be read where nothing waits for it: on the CPU, and not
    while torch traces or makes do with shapes alone."""
    here = tensor.device.type == "cpu" and not torch.compiler.is_compiling()
    return here and not isinstance(tensor, FakeTensor)


def check_number(name: str, value: object, low: float, high: float, expected: str) -> float:
    """`value` as a float in (low, high), closed where an end is finite; bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {_got(value)}, expected {expected}")
    if value < low or not value <= high or abs(value) == float("inf"):
        raise ValueError(f"{name}: got {value!r}, expected {expected}")
    return float(value)


def check_count(name: str, value: object, low: int = 0, bits: int = 63) -> int:
    """`value`, an integer in [low, 2^bits)."""
    expected = f"an integer in [{low}, 2^{bits})"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: got {_got(value)}, expected {expected}")
    if value < low or not value < 1 << bits:
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


def check_buffer(
    name: str,
    tensor: Tensor,
    dtypes: torch.dtype | Sequence[torch.dtype],
    shape: Sequence[int] | None,
    device: torch.device,
) -> Tensor:
    """`tensor`, or an error that names it; `shape` None is any.

    Raises:
        TypeError: another dtype.
        ValueError: another shape or device, or less memory than the shape needs.
    """
    dtype = tensor.dtype
    if dtype is not dtypes and (isinstance(dtypes, torch.dtype) or dtype not in dtypes):
        allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise TypeError(f"{name}: got dtype {tensor.dtype}, expected {expected}")
    if shape is not None and tensor.shape != shape and tensor.shape != tuple(shape):
        raise ValueError(f"{name}: got shape {list(tensor.shape)}, expected {list(shape)}")
    if tensor.device != device:
        raise ValueError(f"{name}: got device {tensor.device}, expected {device}")
    if torch.compiler.is_compiling():  # memory has no address yet: the operator looks again
        return tensor
    if count := tensor.numel():
        last = tensor.storage_offset() + count - 1
        if not tensor.is_contiguous():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
        # Of a module that a sharding framework has put away nothing may be left.
        needed, held = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
        if held < needed:
            raise ValueError(f"{name}: got {held} bytes of memory, expected at least {needed}")
    return tensor


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
