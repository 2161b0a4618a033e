"""`head_gram` by products of folded tokens (method 1.2): an estimate with the labels exact.

The vocabulary is folded into m = `sketch_dim` columns with random signs, but for the columns that
are somebody's label, which are kept as they are. A token's E is then m + L numbers, made as its
logits are, and T^2 V flops become T^2 (m + L).
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.gram.algebra import add_lower_products
from oasis.gram.problem import Problem
from oasis.gram.regimes import ghost


def folded(problem: Problem, dim: int, seed: int) -> tuple[Tensor, ...]:
    """The operator's outputs, K from E folded into `dim` columns."""
    h, count = problem.hidden, problem.hidden.shape[0]
    table = problem.vocabulary_sketch(dim, seed).without(problem.labels)
    epilogue = problem.epilogue(sketches=[table, *problem.asked_sketches()])
    for first, logits in problem.blocks(h, problem.block_size(count)):
        epilogue.block(logits, first, None)
    folds, *asked = epilogue.sketched()
    products, inner = problem.zeros(count, count), problem.zeros(count, count)
    # The whole is a Gram matrix of vectors, so no cosine exceeds one.
    add_lower_products(products, torch.cat([folds, epilogue.gathers], 1))
    add_lower_products(inner, h)
    return ghost.finish(problem, epilogue, products, inner, *problem.sketches(asked))
