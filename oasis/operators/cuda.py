"""The operators on CUDA: the compiled kernels (`oasis.operators.launch`), or their substitutes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oasis.checks import check_grads
from oasis.names import STATISTICS
from oasis.operators import cpu, launch, memory
from oasis.operators.buffers import memory_buffer, memory_inputs, state_buffers
from oasis.operators.candidates import usable_on_gpu
from oasis.operators.cpu import oris_stop
from oasis.operators.library import implement

_RUN = 4 << 20  # numbers widened at once where the kernels were not built


@implement("grad_gram", "CUDA")
def grad_gram(grads: Sequence[Tensor]) -> Tensor:
    check_grads(grads)
    if launch.BUILT:
        return launch.grad_gram(grads)
    n = grads[0].shape[0]
    out = grads[0].new_zeros((n, n), dtype=torch.float64)
    for g in grads:
        # In float64, which no setting of TF32 reaches.
        for columns in g.reshape(n, -1).split(max(1, _RUN // n), dim=1):
            wide = columns.double()
            out.addmm_(wide, wide.T)
    return out


@implement("grad_sketch", "CUDA")
def _(grads: Sequence[Tensor], dim: int, seed: int) -> Tensor:
    exact = memory.check_sketch(grads, dim, seed)
    if launch.BUILT and grads[0].shape[0] <= launch.MAX_SKETCH_SAMPLES:
        return launch.grad_sketch(grads, dim, seed, exact)
    return memory.grad_sketch([g.cpu() for g in grads], dim, seed).to(grads[0].device)


@implement("remembered", "CUDA")
def _(
    gram: Tensor, sketch: Tensor, valid: Tensor, ring: Tensor, counters: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    if launch.BUILT:
        return launch.remembered(gram, sketch, valid, ring, counters, ridge)
    inputs = gram.cpu(), sketch.cpu(), valid.cpu(), ring.cpu(), counters.cpu()
    left, scaled = memory.remembered(*inputs, ridge)
    return left.to(gram.device), scaled.to(gram.device)


@implement("remember_", "CUDA")
def _(sketch: Tensor, mask: Tensor, counters: Tensor, ring: Tensor) -> None:
    if launch.BUILT:
        return launch.remember_(sketch, mask, counters, ring)
    sketch, mask, counters = memory_inputs(sketch, mask, counters, ring.device)
    changed = memory_buffer(ring, sketch.shape[1], ring.device).cpu()
    memory.remember_(sketch.cpu(), mask.cpu(), counters.cpu(), changed)
    ring.copy_(changed)


@implement("siren", "CUDA")
def siren(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor | None,
    method: str,
    ridge: float,
    informativeness: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    fits = method == "exact" or gram.shape[0] <= launch.MAX_SAMPLES
    # Other measures are ablations: not worth kernels.
    if launch.BUILT and fits and informativeness is None:
        return launch.siren(gram, valid, floor, method, ridge)
    scores = None if informativeness is None else informativeness.cpu()
    floor = None if floor is None else floor.cpu()
    adjusted, order = cpu.siren(gram.cpu(), valid.cpu(), floor, method, ridge, scores)
    return adjusted.to(gram.device), order.to(gram.device)


@implement("oris_", "CUDA")
def oris_(
    informativeness: Tensor,
    adjusted: Tensor,
    valid: Tensor,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    if launch.BUILT:
        return launch.oris_(informativeness, adjusted, valid, statistics, counters, options)
    device = informativeness.device
    buffers = state_buffers(statistics, counters, device)
    state = buffers[0].cpu(), buffers[1].cpu()
    inputs = informativeness.cpu(), adjusted.cpu(), valid.cpu()
    relative, probability, mask = cpu.oris_(*inputs, *state, options)
    statistics.copy_(state[0])
    counters.copy_(state[1])
    return relative.to(device), probability.to(device), mask.to(device)


@implement("select_", "CUDA")
def select_(
    gram: Tensor,
    valid: Tensor | None,
    scores: Tensor | None,
    source: str,
    raises: bool,
    method: str,
    ridge: float,
    stop: bool,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> tuple[Tensor, ...]:
    """One launch where a block can take the batch, else one after the other."""
    if launch.BUILT and scores is None and gram.shape[0] <= launch.ONE_LAUNCH:
        found = launch.select_(
            gram,
            valid,
            source == "gram",
            raises,
            method,
            ridge,
            stop,
            statistics,
            counters,
            options,
        )
        if found is not None:
            return found
    state = state_buffers(statistics, counters, gram.device)
    left, own, kept, skipped, fault = usable_on_gpu(gram, valid, scores, None, source, raises)
    threshold = state[0].select(0, STATISTICS["threshold"]).clone()
    floor = oris_stop(own, kept, *state, options) if stop else None
    measured = None if scores is None else own
    adjusted, order = siren(left, kept, floor, method, ridge, measured)
    relative, probability, mask = oris_(own, adjusted, kept, *state, options)
    return own, adjusted, relative, probability, order, mask, skipped, threshold, fault
