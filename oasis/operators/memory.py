"""SIREN across batches on the CPU: sketches, what the remembered ones cover, the ring they fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oasis import _core
from oasis.checks import check_count, check_grads
from oasis.operators.buffers import (
    CPU,
    few_dimensions,
    memory_buffer,
    memory_inputs,
    remembered_inputs,
)
from oasis.operators.library import implement


def check_sketch(grads: Sequence[Tensor], dim: int, seed: int) -> bool:
    """Checks what `grad_sketch` takes; whether the numbers themselves fit a sketch."""
    check_grads(grads)
    check_count("dim", dim, 1, 31)
    check_count("seed", seed)
    return sum(g[0].numel() for g in grads) <= dim


@implement("grad_sketch", "CPU")
def grad_sketch(grads: Sequence[Tensor], dim: int, seed: int) -> Tensor:
    """Sketches [N, dim] (float64) of per-sample gradients, one tensor [N, ...] per parameter.

    A count sketch whose buckets and signs are hashes of a number's position in the sequence of
    parameters; the numbers themselves, padded with zeros, where they are at most `dim`.
    """
    exact, first = check_sketch(grads, dim, seed), 0
    out = torch.zeros(grads[0].shape[0], dim, dtype=torch.float64)
    for g in map(few_dimensions, grads):
        dtype = str(g.dtype).removeprefix("torch.")
        layout = g.data_ptr(), dtype, list(g.shape), list(g.stride())
        _core.sketch(*layout, first, dim, seed, exact, out.data_ptr())
        first += g[0].numel()
    return out


def remembered_arguments(
    gram: Tensor, sketch: Tensor, valid: Tensor, memory: Tensor, counters: Tensor, ridge: float
) -> tuple[dict[str, Any], tuple[Tensor, Tensor]]:
    """What a backend's `remembered` is called with, of inputs that the caller keeps alive until
    then (see `remembered_inputs`), and what it writes: [N, N] and [N, S].
    """
    left, scaled = torch.empty_like(gram), torch.empty_like(sketch)
    arguments = {
        "gram": gram.data_ptr(),
        "sketch": sketch.data_ptr(),
        "valid": valid.data_ptr(),
        "memory": memory.data_ptr(),
        "counters": counters.data_ptr(),
        "n": gram.shape[0],
        "capacity": memory.shape[0],
        "width": memory.shape[1],
        "ridge": ridge,
        "left": left.data_ptr(),
        "scaled": scaled.data_ptr(),
    }
    return arguments, (left, scaled)


@implement("remembered", "CPU")
def remembered(
    gram: Tensor, sketch: Tensor, valid: Tensor, memory: Tensor, counters: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Gram matrix [N, N] less what the remembered sketches [m, S] cover, and sketches [N, S]
    rescaled to its squared norms (docs/method.md 2.4)."""
    inputs = remembered_inputs(gram, sketch, valid, memory, counters, ridge)
    arguments, results = remembered_arguments(*inputs, ridge)
    _core.remembered(**arguments)
    return results


@implement("remember_", "CPU")
def remember_(sketch: Tensor, mask: Tensor, counters: Tensor, memory: Tensor) -> None:
    """Writes the masked rows of sketch [N, S] into the ring [m, S]. The counters have been
    advanced past them (`oris_`)."""
    sketch, mask, counters = memory_inputs(sketch, mask, counters, CPU)
    n, width = sketch.shape
    memory = memory_buffer(memory, width, CPU)
    state = counters.data_ptr(), memory.data_ptr()
    _core.remember(sketch.data_ptr(), mask.data_ptr(), n, width, *state, memory.shape[0])
