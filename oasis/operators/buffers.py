"""What a tensor must be before compiled code reads or writes at its address.

The operators check every tensor here, whoever calls them: a wrong type, shape or device, or memory
that has been freed, would be read beyond its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from oasis.checks import FLOATS, check_buffer, check_number
from oasis.names import COUNTERS, STATISTICS

CPU = torch.device("cpu")


def address(tensor: Tensor | None) -> int:
    """Where a checked tensor's numbers lie, 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def few_dimensions(grads: Tensor) -> Tensor:
    """Gradients [N, ...] whose strides the core can be told: of at most eight dimensions."""
    return grads if grads.ndim <= 9 else grads.flatten(1)


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


def gram64(gram: Tensor) -> tuple[Tensor, int]:
    """A floating-point Gram matrix as float64, its numbers side by side, and N."""
    n = gram.shape[0]
    check_buffer("gram", gram, FLOATS, (n, n), gram.device)
    return gram.to(torch.float64).contiguous(), n


def usable_inputs(
    gram: Tensor, valid: Tensor | None, scores: Tensor | None, sketch: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """What is read of N candidates, contiguous, on the device of the Gram matrix."""
    matrix, n = gram64(gram)
    device = gram.device
    if valid is not None:
        valid = read_buffer("valid", valid, torch.bool, (n,), device)
    if scores is not None:
        scores = read_buffer("scores", scores, torch.float64, (n,), device)
    if sketch is not None:
        sketch = read_buffer("sketch", sketch, torch.float64, (n, sketch.shape[1]), device)
    return matrix, valid, scores, sketch


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


class Selected(NamedTuple):
    """What `select_` returns of N samples, but the last two [N]: see `oasis.Selection`."""

    informativeness: Tensor
    adjusted: Tensor
    relative: Tensor
    probability: Tensor
    order: Tensor
    mask: Tensor
    skipped: Tensor
    threshold: Tensor  # 0-d, the one used
    fault: Tensor  # 0-d, 0 or the code of what is wrong (`oasis.operators.candidates`)

    @classmethod
    def empty(cls, n: int, device: torch.device) -> Selected:
        """Memory for the results."""

        def new(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        real, whole, known = torch.float64, torch.int64, torch.bool
        scores = new(real, n), new(real, n), new(real, n), new(real, n)
        return cls(*scores, new(whole, n), new(known, n), new(known, n), new(real), new(whole))

    def addresses(self) -> dict[str, int]:
        """Where the results go, by name."""
        return dict(zip(self._fields, (x.data_ptr() for x in self), strict=True))
