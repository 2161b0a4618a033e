"""What a tensor must be before compiled code reads or writes at its address.

The operators check every tensor here, whoever calls them: a wrong type, shape or device, or memory
that has been freed, would be read beyond its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oasis.checks import check_buffer, check_number
from oasis.names import COUNTERS, STATISTICS

CPU = torch.device("cpu")


def read_buffer(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], device: torch.device
) -> Tensor:
    """A checked tensor whose numbers lie side by side: itself, or a copy."""
    return check_buffer(name, tensor, dtype, shape, device).contiguous()


def written_buffer(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], device: torch.device
) -> Tensor:
    """A checked tensor whose numbers lie side by side already: it is changed in place."""
    check_buffer(name, tensor, dtype, shape, device)
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: got strides {list(tensor.stride())}, expected a contiguous tensor, since it "
            "is changed in place"
        )
    return tensor


def state_buffers(
    statistics: Tensor, counters: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The two state buffers of a Selector, as ORIS advances them."""
    return (
        written_buffer("statistics", statistics, torch.float64, (len(STATISTICS),), device),
        written_buffer("counters", counters, torch.int64, (len(COUNTERS),), device),
    )


def siren_inputs(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor | None,
    informativeness: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What SIREN reads of N samples, contiguous; no floor is -inf."""
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"gram: got shape {list(gram.shape)}, expected [N, N]")
    n, real = gram.shape[0], torch.float64
    scores = informativeness
    if scores is not None:
        scores = read_buffer("informativeness", scores, real, (n,), device)
    return (
        read_buffer("gram", gram, real, (n, n), device),
        read_buffer("valid", valid, torch.bool, (n,), device),
        None if floor is None else read_buffer("floor", floor, real, (), device),
        scores,
    )


def oris_inputs(
    informativeness: Tensor, adjusted: Tensor, valid: Tensor, device: torch.device
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


def memory_inputs(
    sketch: Tensor, mask: Tensor, counters: Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Sketches [N, S] of N samples, a bool of each, and a Selector's counters, contiguous."""
    if sketch.ndim != 2:
        raise ValueError(f"sketch: got shape {list(sketch.shape)}, expected [N, S]")
    return (
        read_buffer("sketch", sketch, torch.float64, sketch.shape, device),
        read_buffer("mask", mask, torch.bool, sketch.shape[:1], device),
        read_buffer("counters", counters, torch.int64, (len(COUNTERS),), device),
    )


def memory_buffer(memory: Tensor, width: int, device: torch.device) -> Tensor:
    """The ring [m, S] of remembered sketches, m >= 1."""
    shape = (max(len(memory), 1) if memory.ndim else 1, width)
    return written_buffer("memory", memory, torch.float64, shape, device)


def remembered_inputs(
    gram: Tensor, sketch: Tensor, valid: Tensor, memory: Tensor, counters: Tensor, ridge: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `remembered` reads, contiguous: gram, sketch, valid, memory, counters."""
    device = gram.device
    check_number("ridge", ridge, 5e-324, float("inf"), "a finite number > 0")
    sketch, valid, counters = memory_inputs(sketch, valid, counters, device)
    n, width = sketch.shape
    gram = read_buffer("gram", gram, torch.float64, (n, n), device)
    return gram, sketch, valid, memory_buffer(memory, width, device), counters
