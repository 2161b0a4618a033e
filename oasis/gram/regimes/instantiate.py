"""`head_gram` by per-sample gradients of one vocabulary block at a time (method 1.2).

B_i = sum_t delta_t h_t^T over a block's rows, then K += B B^T: 6 T V D + N^2 V D / 2 flops and
N x block x D numbers of memory, none of them T^2. Exact; cheaper than token products where T is
several times D. The gradients need every token's log-sum-exp first, so W is visited twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import operators
from oasis.gram.algebra import add_lower_products, mirrored, multiply, offsets
from oasis.gram.problem import Problem
from oasis.gram.results import unit_coefficients

_STREAMED = 128  # samples up to which the streaming Gram beats a matrix product


def instantiate(problem: Problem) -> tuple[Tensor, ...]:
    h, samples = problem.hidden, problem.tokens.numel()
    count, width = h.shape
    first_pass = problem.epilogue(gathers=False, sketches=problem.asked_sketches())
    for first, logits in problem.blocks(h, problem.block_size(count)):
        first_pass.block(logits, first, None)
    r = problem.results(first_pass.token)

    # delta_t = coefficient (E_t - label_share e_y), E relative to the results' base.
    coefficient, top = unit_coefficients(r.coefficient, problem.owner, samples)
    coefficient = coefficient.to(problem.work)
    label_share = r.label_share.to(problem.work)
    second_pass = problem.epilogue(gathers=False)
    for f in ("peak", "entry_peak"):  # final, so that E is never rescaled; its sums are not used
        second_pass.token[f].copy_(r.base)

    size = min(max(16, problem.block_elements // (samples * width)), problem.block_size(count))
    size = min(size, problem.weight.shape[0])
    gradients = problem.zeros(samples, size, width)
    gram = torch.zeros((samples, samples), dtype=torch.float64, device=h.device)
    bounds = offsets(problem.tokens).tolist()
    for first, logits in problem.blocks(h, size):
        second_pass.block(logits, first, None)
        columns = logits.shape[1]
        inside = ((problem.labels >= first) & (problem.labels < first + columns)).nonzero()[:, 0]
        logits[inside, problem.labels[inside] - first] = -label_share[inside]
        logits *= coefficient.unsqueeze(1)
        block = gradients[:, :columns]
        _fill(block, logits, h, bounds)
        gram += _products(block)
    gram = mirrored(gram) * (top * top.unsqueeze(1))
    sketches = problem.sample_sketches(*problem.sketches(first_pass.sketched()), r)
    return problem.outputs(gram, r.metrics, sketches)


def _fill(out: Tensor, deltas: Tensor, hidden: Tensor, bounds: list[int]) -> None:
    """out [N, C, D]: sums of delta_t h_t^T over the tokens of each sample that has any.

    Where hidden states are multiplied in a half type, deltas come as two such numbers, which keeps
    16 bits of them at least; a coefficient would cost h its last ones.
    """
    planes = [deltas.to(hidden.dtype)]
    if planes[0].dtype != deltas.dtype:
        planes.append((deltas - planes[0]).to(hidden.dtype))
    for i, own in enumerate(out):
        rows = slice(bounds[i], bounds[i + 1])
        if rows.start == rows.stop:
            continue
        multiply(planes[0][rows].T, hidden[rows], out=own)
        for plane in planes[1:]:
            own += multiply(plane[rows].T, hidden[rows])


def _products(gradients: Tensor) -> Tensor:
    """B B^T [N, N] of gradients [N, C, D], its lower half at least."""
    samples = gradients.shape[0]
    if samples <= _STREAMED:  # few long rows: bound by memory, and summed in float64
        return operators.grad_gram([gradients])
    product = gradients.new_zeros((samples, samples))
    add_lower_products(product, gradients.reshape(samples, -1))
    return product
