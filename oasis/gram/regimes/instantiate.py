"""`head_gram` by per-sample gradients of one vocabulary block at a time (method 1.2).

B_i = sum_t delta_t h_t^T over a block's rows, then K += B B^T: 6 T V D + N^2 V D / 2 flops and
N x block x D numbers of memory, none of them T^2. Exact; cheaper than token products where T is
several times D. The gradients need every token's log-sum-exp first, so W is visited twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.gram.algebra import add_lower_products, mirrored, offsets
from oasis.gram.problem import BLOCK_ELEMENTS, Problem
from oasis.gram.results import unit_coefficients

_STREAMED = 128  # samples up to which the streaming Gram beats a matrix product


def instantiate(problem: Problem) -> tuple[Tensor, ...]:
    h, samples = problem.hidden, problem.tokens.numel()
    count, width = h.shape
    first_pass = problem.epilogue(gathers=False, sketches=problem.asked_sketches())
    for first, logits in problem.blocks(h, problem.block_size(count)):
        first_pass.block(logits, first, None)
    r = problem.results(first_pass.token)

    # delta_t = coefficient (E_t - label_share e_y), E relative to the results' base: the
    # coefficient goes to h, the label's column into E.
    coefficient, top = unit_coefficients(r.coefficient, problem.owner, samples)
    scaled = h * coefficient.to(h.dtype).unsqueeze(1)
    label_share = r.label_share.to(h.dtype)
    second_pass = problem.epilogue(gathers=False)
    for f in ("peak", "entry_peak"):  # final, so that E is never rescaled; its sums are not used
        second_pass.token[f].copy_(r.base)

    size = min(max(16, BLOCK_ELEMENTS // (samples * width)), problem.block_size(count))
    size = min(size, problem.weight.shape[0])
    gradients = h.new_zeros((samples, size, width))
    gram = torch.zeros((samples, samples), dtype=torch.float64, device=h.device)
    product = h.new_zeros((samples, samples))
    bounds = offsets(problem.tokens).tolist()
    for first, logits in problem.blocks(h, size):
        second_pass.block(logits, first, None)
        columns = logits.shape[1]
        inside = ((problem.labels >= first) & (problem.labels < first + columns)).nonzero()[:, 0]
        logits[inside, problem.labels[inside] - first] = -label_share[inside]
        block = gradients[:, :columns]
        for i in range(samples):
            rows = slice(bounds[i], bounds[i + 1])
            if rows.start < rows.stop:
                torch.mm(logits[rows].T, scaled[rows], out=block[i])
        if samples <= _STREAMED:  # few long rows: bound by memory, and summed in float64
            gram += torch.ops.oasis.grad_gram([block])
        else:
            product.zero_()
            add_lower_products(product, block.reshape(samples, -1))
            gram += product
    gram = mirrored(gram) * (top * top.unsqueeze(1))
    sketches = problem.sample_sketches(*problem.sketches(first_pass), r)
    return problem.outputs(gram, r.metrics, sketches)
