"""The operators behind `head_gram` and `merge`: from tokens to a regime and its backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oasis.checks import check_buffer
from oasis.gram.backends.choice import check_float8, choose, triton_head_gram
from oasis.gram.backends.epilogue import FIELDS
from oasis.gram.checks import check_head_tensors, check_head_values
from oasis.gram.cost import METHODS
from oasis.gram.problem import Problem
from oasis.gram.regimes import ghost
from oasis.gram.regimes.folded import folded
from oasis.gram.regimes.instantiate import instantiate
from oasis.gram.regimes.sketch import from_sketches
from oasis.operators.library import implement

TILED = ("ghost", "float8", "folded")  # what Triton does


def _problem(
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
    first: int = 0,
) -> Problem:
    backend = choose(hidden.device, hidden.dtype)[0]
    backend = "torch" if backend == "triton" else backend  # what Triton does not do
    head = weight, bias, softcap, scale, mean, backend
    problem = Problem.of(hidden, labels, sample, num_samples, *head)
    problem.sketch, problem.first = sketch, first
    if first:  # of those with a label: one shifted by `first` may be -100 itself
        problem.labels -= first
    return problem


def _nothing(problem: Problem) -> tuple[Tensor, ...]:
    """The outputs where no token has a label."""
    n, like = problem.tokens.numel(), problem.hidden
    zeros = [like.new_zeros(n, dtype=torch.float64) for _ in range(3)]
    gram = like.new_zeros((n, n), dtype=torch.float64)
    sketch = like.new_zeros((n, problem.sketch[0]), dtype=torch.float64)
    return gram, *zeros, torch.zeros_like(problem.tokens), problem.tokens, sketch


@implement("head_gram", "CPU", "CUDA")
def head_gram_blocks(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float,
    scale: float,
    mean: bool,
    method: str = "ghost",
    sketch_dim: int = 4096,
    seed: int = 0,
    sketch: int = 0,
) -> tuple[Tensor, ...]:
    """(gram [N, N], loss, entropy, el2n, correct, tokens [N], sketch [N, `sketch`]); `softcap` 0
    means none."""
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
    check_head_tensors(hidden, weight, labels, sample, bias)
    arguments = hidden, weight, labels, sample, num_samples, bias, softcap, scale, mean
    tiled = method in TILED and choose(hidden.device, hidden.dtype)[0] == "triton"
    if method == "float8":
        check_float8(hidden.device, hidden.dtype)
    if not tiled or hidden.device.type == "cpu":  # where nothing waits for a value
        check_head_values(labels, sample, num_samples, weight.shape[0])
    if tiled and labels.numel():
        fold = sketch_dim * (method == "folded")
        return triton_head_gram(*arguments, (sketch, seed), fold, method == "float8")
    problem = _problem(*arguments, (sketch, seed))
    if problem.labels.numel() == 0:
        return _nothing(problem)
    if method in ("ghost", "float8"):  # "float8": of no token
        return ghost.whole(problem)
    if method == "instantiate":
        return instantiate(problem)
    if method == "folded":
        return folded(problem, sketch_dim, seed)
    return from_sketches(problem, sketch_dim, seed)


@implement("head_partial", "CPU", "CUDA")
def head_partial_blocks(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float,
    scale: float,
    mean: bool,
    first: int,
    seed: int = 0,
    sketch: int = 0,
) -> tuple[Tensor, ...]:
    """Of `vocab_range=`: (products, inner, gathers, token, deltas, hidden, labels, tokens), where
    deltas and hidden [T, `sketch`] are sketches of E and of h."""
    check_head_tensors(hidden, weight, labels, sample, bias)
    # The whole head's size is known to merge alone.
    check_head_values(labels, sample, num_samples, 1 << 62)
    head = bias, softcap, scale, mean, (sketch, seed)
    problem = _problem(hidden, weight, labels, sample, num_samples, *head, first)
    return *ghost.partial(problem), problem.labels + first, problem.tokens


def _check_parts(
    products: Sequence[Tensor],
    gathers: Sequence[Tensor],
    token: Sequence[Tensor],
    deltas: Sequence[Tensor],
    inner: Tensor,
    hidden: Tensor,
    labels: Tensor,
    tokens: Tensor,
) -> None:
    """Types, shapes and devices of what `merge_parts` takes."""
    counts = len(products), len(gathers), len(token), len(deltas)
    if not 1 <= min(counts) == max(counts):
        raise ValueError(
            f"products, gathers, token, deltas: got {counts} parts, expected equally many"
        )
    device, count = inner.device, labels.numel()
    check_buffer("labels", labels, torch.int64, (count,), device)
    check_buffer("tokens", tokens, torch.int64, (tokens.numel(),), device)
    check_buffer("inner", inner, (torch.float32, torch.float64), (count, count), device)
    if int(tokens.sum()) != count or (tokens < 0).any():
        raise ValueError(f"tokens: got {tokens.tolist()}, expected counts that add to {count}")
    distinct = labels.unique().numel()
    check_buffer("hidden", hidden, inner.dtype, (count, hidden.shape[-1]), device)
    parts = zip(products, gathers, token, deltas, strict=True)
    for i, (product, at_labels, state, delta) in enumerate(parts):
        check_buffer(f"deltas[{i}]", delta, inner.dtype, hidden.shape, device)
        check_buffer(f"products[{i}]", product, inner.dtype, (count, count), device)
        check_buffer(f"gathers[{i}]", at_labels, inner.dtype, (count, distinct), device)
        fields = len(FIELDS)
        check_buffer(f"token[{i}]", state, torch.float64, (fields, count), device)


@implement("head_merge", "CPU", "CUDA")
def head_merge_blocks(
    products: Sequence[Tensor],
    gathers: Sequence[Tensor],
    token: Sequence[Tensor],
    deltas: Sequence[Tensor],
    inner: Tensor,
    hidden: Tensor,
    labels: Tensor,
    tokens: Tensor,
    softcap: float,
    scale: float,
    mean: bool,
    seed: int = 0,
) -> tuple[Tensor, ...]:
    """Outputs as of `head_gram` from the parts of the vocabulary."""
    _check_parts(products, gathers, token, deltas, inner, hidden, labels, tokens)
    lists = products, gathers, deltas
    products, gathers, deltas = ([x.contiguous() for x in each] for each in lists)
    inner, hidden = inner.contiguous(), hidden.contiguous()
    owner = torch.repeat_interleave(tokens)
    backend = choose(inner.device, inner.dtype)[0]
    backend = "torch" if backend == "triton" else backend
    # What came of hidden states and head is in the parts: `inner` stands for both, for its type. An
    # output may not be an input, and the counts are both.
    of = inner, labels, owner, tokens.clone()
    sketch = hidden.shape[1], seed
    problem = Problem(*of, inner, None, softcap, scale, mean, backend, sketch)
    if labels.numel() == 0:
        return _nothing(problem)
    parts = [ghost.Part(*x) for x in zip(products, gathers, token, deltas, strict=True)]
    return ghost.merge(problem, parts, inner, hidden)
