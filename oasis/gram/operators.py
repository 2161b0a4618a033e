"""The operators behind `head_gram` and `merge`: from tokens to a regime and its backend."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.gram.backends.choice import choose
from oasis.gram.problem import Problem
from oasis.gram.regimes import ghost
from oasis.gram.regimes.instantiate import instantiate
from oasis.gram.regimes.sketch import sketch
from oasis.ops import implement


def _problem(
    hidden, weight, labels, sample, num_samples, bias, softcap, scale, mean, first=0, ghost=False
) -> Problem:
    backend = choose(hidden.device, hidden.dtype)[0]
    if backend == "triton" and not ghost:
        backend = "torch"  # Triton's E has a form of its own, and the other regimes look into E
    labels = torch.where(labels == -100, labels, labels - first) if first else labels
    head = weight, bias, softcap, scale, mean, backend
    return Problem.of(hidden, labels, sample, num_samples, *head)


def _nothing(problem: Problem) -> tuple[Tensor, ...]:
    """The outputs where no token has a label."""
    n, like = problem.tokens.numel(), problem.hidden
    zeros = [like.new_zeros(n, dtype=torch.float64) for _ in range(3)]
    gram = like.new_zeros((n, n), dtype=torch.float64)
    return gram, *zeros, torch.zeros_like(problem.tokens), problem.tokens


@implement("head_gram", "CPU", "CUDA")
def head_gram_blocks(
    hidden, weight, labels, sample, num_samples, bias, softcap, scale, mean,
    method: str = "ghost", sketch_dim: int = 4096, seed: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(gram [N, N], loss, entropy, el2n, correct, tokens [N]); `softcap` 0 means none."""
    head = bias, softcap, scale, mean
    problem = _problem(hidden, weight, labels, sample, num_samples, *head, ghost=method == "ghost")
    if problem.labels.numel() == 0:
        return _nothing(problem)
    if method == "ghost":
        return ghost.finish(problem, *ghost.visit(problem))
    if method == "instantiate":
        return instantiate(problem)
    return sketch(problem, sketch_dim, seed)


@implement("head_partial", "CPU", "CUDA")
def head_partial_blocks(*arguments) -> tuple[Tensor, ...]:
    """Of `vocab_range=`: (products, inner, gathers, token, labels, tokens)."""
    problem, first = _problem(*arguments), arguments[-1]
    return *ghost.partial(problem), problem.labels + first, problem.tokens


@implement("head_merge", "CPU", "CUDA")
def head_merge_blocks(
    products, gathers, token, inner, labels, tokens, softcap: float, scale: float, mean: bool
) -> tuple[Tensor, ...]:
    """Outputs as of `head_gram` from the parts of the vocabulary."""
    owner = torch.repeat_interleave(tokens)
    backend = choose(inner.device, inner.dtype)[0]
    head = (None, None, softcap, scale, mean, "torch" if backend == "triton" else backend)
    # An output may not be an input, and the counts are both.
    problem = Problem(inner, labels, owner, tokens.clone(), *head)
    if labels.numel() == 0:
        return _nothing(problem)
    return ghost.merge(problem, list(zip(products, gathers, token, strict=True)), inner)
