"""The operators on the CPU, but for the output head's (`oasis.gram.operators`).

What lies at the addresses that the compiled core takes is checked at every call
(`oasis.operators.buffers`), what it means by `oasis.gram` and `oasis.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oasis import _core
from oasis.checks import check_grads
from oasis.operators.buffers import (
    CPU,
    Selected,
    address,
    few_dimensions,
    oris_inputs,
    siren_inputs,
    state_buffers,
    usable_inputs,
)
from oasis.operators.candidates import raise_finding
from oasis.operators.library import implement


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@implement("grad_gram", "CPU")
def _(grads: Sequence[Tensor]) -> Tensor:
    """Gram matrix [N, N] (float64) of per-sample gradients, one tensor [N, ...] per parameter."""
    check_grads(grads)
    n = grads[0].shape[0]
    out = torch.zeros(n, n, dtype=torch.float64)
    for g in grads:
        part = _gram_of(g, wide=False)
        if g.dtype != torch.float64 and _outside_float32(g, part.diagonal()):
            part = _gram_of(g, wide=True)
        out += part
    return out


def _gram_of(g: Tensor, wide: bool) -> Tensor:
    g = few_dimensions(g)
    part = torch.zeros(g.shape[0], g.shape[0], dtype=torch.float64)
    _core.gram(g.data_ptr(), _dtype_name(g), list(g.shape), list(g.stride()), wide, part.data_ptr())
    return part


def _outside_float32(g: Tensor, squared_norms: Tensor) -> bool:
    """Whether products of finite, non-zero gradients left float32's range (rare, so looked at
    only where a squared norm is suspicious)."""
    suspects = (
        (~squared_norms.isfinite() | (squared_norms < 1e-31 * g[0].numel())).nonzero().squeeze(1)
    )
    largest = (float(g[i].abs().amax()) for i in suspects.tolist())
    return any(0 < value < float("inf") for value in largest)


@implement("siren", "CPU")
def siren(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor | None,
    method: str,
    ridge: float,
    informativeness: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Adjusted scores [N] and pick order [N] (-1 after the last pick) from a Gram matrix [N, N].

    `informativeness` [N] >= 0 takes the place of its diagonal as a score; cosines stay those of the
    matrix. (Of "residual": informativeness x the share of the gradient outside the picks' span.)
    """
    gram, valid, floor, informativeness = siren_inputs(gram, valid, floor, informativeness, CPU)
    n = gram.shape[0]
    adjusted = torch.empty(n, dtype=torch.float64)
    order = torch.empty(n, dtype=torch.int64)
    _core.siren(
        gram.data_ptr(),
        valid.data_ptr(),
        n,
        method,
        ridge,
        -math.inf if floor is None else float(floor),
        adjusted.data_ptr(),
        order.data_ptr(),
        address(informativeness),
    )
    return adjusted, order


@implement("oris_", "CPU")
def oris_(
    informativeness: Tensor,
    adjusted: Tensor,
    valid: Tensor,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Relative informativeness [N], probability [N] and mask [N]; advances the state in place."""
    informativeness, adjusted, valid = oris_inputs(informativeness, adjusted, valid, CPU)
    statistics, counters = state_buffers(statistics, counters, CPU)
    n = informativeness.shape[0]
    relative, probability = (torch.empty(n, dtype=torch.float64) for _ in range(2))
    mask = torch.empty(n, dtype=torch.bool)
    _core.oris(
        informativeness.data_ptr(),
        adjusted.data_ptr(),
        valid.data_ptr(),
        n,
        statistics.data_ptr(),
        counters.data_ptr(),
        options,
        relative.data_ptr(),
        probability.data_ptr(),
        mask.data_ptr(),
    )
    return relative, probability, mask


@implement("oris_stop", "CPU", "CUDA")  # of one preset: not worth a kernel of its own
def oris_stop(
    informativeness: Tensor,
    valid: Tensor,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> Tensor:
    """The score at which z of this batch is the threshold; the state is only read."""
    scores = informativeness.cpu()
    scores, _, valid = oris_inputs(scores, scores, valid.cpu(), CPU)
    statistics, counters = state_buffers(statistics.cpu(), counters.cpu(), CPU)
    stop = _core.oris_stop(
        scores.data_ptr(),
        valid.data_ptr(),
        len(scores),
        statistics.data_ptr(),
        counters.data_ptr(),
        options,
    )
    return torch.full((), stop, dtype=torch.float64, device=informativeness.device)


@implement("select_", "CPU")
def _(
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
    """What `usable` finds, then as `siren` and `oris_`, in one call: see `Selected`."""
    gram, valid, scores, _ = usable_inputs(gram, valid, scores)
    statistics, counters = state_buffers(statistics, counters, CPU)
    results = Selected.empty(len(gram), CPU)
    found = _core.select(
        gram=gram.data_ptr(),
        given=address(valid),
        scores=address(scores),
        n=len(gram),
        products=source == "gram",
        raises=raises,
        method=method,
        ridge=ridge,
        stop=stop,
        options=options,
        statistics=statistics.data_ptr(),
        counters=counters.data_ptr(),
        **results.addresses(),
    )
    raise_finding(found, gram, scores, results.skipped, source)
    return results
