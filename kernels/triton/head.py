"""`head_gram` by products of tokens with the Triton kernels: from hidden states to the results.

The logits of low-precision inputs come straight from tensor cores (nothing is widened first), and
the symmetric product is a kernel of its own; or E is folded as it is made. An ignored position
costs what a label token does.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from oasis.kernels.triton.blocks import blocks_for
from oasis.kernels.triton.folded import Folded
from oasis.kernels.triton.visit import Segments, Visit
from torch import Tensor

from oasis.gram.algebra import multiply
from oasis.gram.rates import FLOAT8, HALF, TWICE
from oasis.gram.tensor_sketch import VocabularySketch, vocabulary_sketch


def head_gram(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float,
    scale: float,
    mean: bool,
    sketch: tuple[int, int],
    fold: int = 0,
    float8: bool = False,
) -> tuple[Tensor, ...]:
    """What the operator `oasis::head_gram` returns by "ghost", by "float8", or by "folded" into
    `fold` columns; `sketch` is (numbers per sample, 0 for none; the seed of both)."""
    device = hidden.device

    def table(dim: int) -> VocabularySketch:
        return vocabulary_sketch(weight.shape[0], dim, sketch[1], torch.float32, device)

    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        segments = Segments(labels, sample, num_samples, weight.shape[0], blocks_for(device))
        asked = table(sketch[0]) if sketch[0] else None
        # What rounding E to float16 loses is far below what half-precision inputs carry; float32
        # inputs keep their precision with a second plane.
        entries = TWICE if hidden.dtype == torch.float32 else HALF
        head = segments, bias, softcap, scale, FLOAT8 if float8 else entries, asked
        visit = Folded(*head, table(fold)) if fold else Visit(*head)
        h = hidden.index_select(0, segments.order)
        products = visit.vocabulary(h, weight)
        results = visit.results(products, multiply(h, h.T), mean)
        return *results, visit.sketched(h, sketch, results[-1])
