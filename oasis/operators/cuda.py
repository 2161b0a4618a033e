"""The operators on CUDA: the compiled kernels (`oasis.operators.launch`), or their substitutes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oasis.checks import check_grads
from oasis.operators import cpu, launch
from oasis.operators.buffers import state_buffers
from oasis.operators.library import implement


@implement("grad_gram", "CUDA")
def _(grads: Sequence[Tensor]) -> Tensor:
    check_grads(grads)
    if launch.BUILT:
        return launch.grad_gram(grads)
    n = grads[0].shape[0]
    out = grads[0].new_zeros((n, n), dtype=torch.float64)
    for g in grads:
        rows = g.reshape(n, -1)
        # Short float32 products summed in float64, as on the CPU; no TF32 inside.
        for columns in rows.split(1 << 20, dim=1):
            wide = columns.to(torch.promote_types(g.dtype, torch.float32))
            out += (wide @ wide.T).double()
    return out


@implement("siren", "CUDA")
def siren(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor,
    method: str,
    ridge: float,
    informativeness: Tensor | None = None,
):
    plain = informativeness is None  # other measures are ablations: not worth kernels
    fits = method == "exact" or gram.shape[0] <= launch.MAX_SAMPLES
    if launch.BUILT and fits and plain:
        return launch.siren(gram, valid, floor, method, ridge)
    scores = None if plain else informativeness.cpu()
    results = cpu.siren(gram.cpu(), valid.cpu(), floor.cpu(), method, ridge, scores)
    return tuple(r.to(gram.device) for r in results)


@implement("oris_", "CUDA")
def oris_(informativeness, adjusted, valid, statistics, counters, options):
    if launch.BUILT:
        return launch.oris_(informativeness, adjusted, valid, statistics, counters, options)
    state = [t.cpu() for t in state_buffers(statistics, counters, informativeness.device)]
    results = cpu.oris_(informativeness.cpu(), adjusted.cpu(), valid.cpu(), *state, options)
    statistics.copy_(state[0])
    counters.copy_(state[1])
    return tuple(r.to(informativeness.device) for r in results)


@implement("siren_oris_", "CUDA")
def _(gram, informativeness, valid, floor, method, ridge, statistics, counters, options):
    state = statistics, counters
    if launch.BUILT and gram.shape[0] <= launch.ONE_LAUNCH:
        return launch.siren_oris_(
            gram, informativeness, valid, floor, method, ridge, *state, options
        )
    adjusted, order = siren(gram, valid, floor, method, ridge)
    return adjusted, order, *oris_(informativeness, adjusted, valid, *state, options)
