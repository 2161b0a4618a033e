"""What a tensor must be before compiled code reads or writes at its address.

The operators check every tensor here, whoever calls them: a wrong type, shape or device, or memory
that has been freed, would be read beyond its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oasis.names import Counter, Statistic

CPU = torch.device("cpu")


def check_buffer(
    name: str, tensor: Tensor, dtypes: torch.dtype | Sequence[torch.dtype], shape, device
) -> Tensor:
    """`tensor`, or an error that names it; `shape` None is any.

    Raises:
        TypeError: another dtype.
        ValueError: another shape or device, or less memory than the shape needs.
    """
    if tensor.dtype is not dtypes and (
        isinstance(dtypes, torch.dtype) or tensor.dtype not in dtypes
    ):
        allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise TypeError(f"{name}: got dtype {tensor.dtype}, expected {expected}")
    if shape is not None and tensor.shape != tuple(shape):
        raise ValueError(f"{name}: got shape {list(tensor.shape)}, expected {list(shape)}")
    if tensor.device != device:
        raise ValueError(f"{name}: got device {tensor.device}, expected {device}")
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


def check_one_device(arguments: Sequence) -> None:
    """ValueError unless all tensors among the arguments of an operator, and in lists, agree."""
    lists = (a if isinstance(a, (list, tuple)) else (a,) for a in arguments)
    devices = {str(t.device) for each in lists for t in each if isinstance(t, Tensor)}
    if len(devices) > 1:
        got = ", ".join(sorted(devices))
        raise ValueError(f"got tensors on the devices {got}, expected one")


def read_buffer(name: str, tensor: Tensor, dtypes, shape, device) -> Tensor:
    """A checked tensor whose numbers lie side by side: itself, or a copy."""
    return check_buffer(name, tensor, dtypes, shape, device).contiguous()


def written_buffer(name: str, tensor: Tensor, dtypes, shape, device) -> Tensor:
    """A checked tensor whose numbers lie side by side already: it is changed in place."""
    check_buffer(name, tensor, dtypes, shape, device)
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: got strides {list(tensor.stride())}, expected a contiguous tensor, since it "
            "is changed in place"
        )
    return tensor


def state_buffers(statistics: Tensor, counters: Tensor, device) -> tuple[Tensor, Tensor]:
    """The two state buffers of a Selector, as ORIS advances them."""
    return (
        written_buffer("statistics", statistics, torch.float64, (len(Statistic),), device),
        written_buffer("counters", counters, torch.int64, (len(Counter),), device),
    )


def siren_inputs(
    gram: Tensor, valid: Tensor, floor: Tensor, informativeness: Tensor | None, device
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What SIREN reads of N samples, contiguous."""
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"gram: got shape {list(gram.shape)}, expected [N, N]")
    n, real = gram.shape[0], torch.float64
    scores = informativeness
    if scores is not None:
        scores = read_buffer("informativeness", scores, real, (n,), device)
    return (
        read_buffer("gram", gram, real, (n, n), device),
        read_buffer("valid", valid, torch.bool, (n,), device),
        read_buffer("floor", floor, real, (), device),
        scores,
    )


def oris_inputs(
    informativeness: Tensor, adjusted: Tensor, valid: Tensor, device
) -> tuple[Tensor, Tensor, Tensor]:
    """What ORIS reads of N samples, contiguous."""
    if informativeness.ndim != 1:
        raise ValueError(f"informativeness: got shape {list(informativeness.shape)}, expected [N]")
    shape = informativeness.shape
    return (
        read_buffer("informativeness", informativeness, torch.float64, shape, device),
        read_buffer("adjusted", adjusted, torch.float64, shape, device),
        read_buffer("valid", valid, torch.bool, shape, device),
    )
