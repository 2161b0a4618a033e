"""`head_gram` by blocks of the vocabulary (docs/method.md 1.1 and 1.2): its regimes' driver.

Matrix products are torch's. What lies between them is the compiled epilogue on the CPU, Triton
(`oasis.kernels.triton`) or plain torch (`oasis.head_torch`) on a GPU: see `oasis.head_backend`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core, head_backend, head_ghost, head_torch, head_triton
from oasis.head_instantiate import instantiate
from oasis.head_problem import Problem
from oasis.head_sketch import sketch


class _Compiled:
    """The epilogue of `csrc/cpu/head.cpp`. `token` holds the per-token state, see `HeadBlock`."""

    fields = (*head_ghost.FIELDS, "factor")

    def __init__(self, labels, label_index, distinct, bias, scale, softcap, dtype):
        tokens = labels.numel()
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        self.float64 = dtype == torch.float64
        self.token = {f: torch.zeros(tokens, dtype=torch.float64) for f in self.fields}
        for f in ("peak", "ridge", "maximum"):
            self.token[f].fill_(-torch.inf)
        self.gathers = torch.zeros(tokens, distinct.numel(), dtype=dtype)
        self.sorted_labels = distinct.tolist()

    def block(self, logits: Tensor, first: int, products: Tensor | None) -> None:
        """Logits [T, C], tokens side by side in memory, become E in place; `products` shrink
        as the peaks grow."""
        tokens, columns = logits.shape
        inside = [
            (i, y - first) for i, y in enumerate(self.sorted_labels) if first <= y < first + columns
        ]
        label_columns = torch.tensor([column for _, column in inside], dtype=torch.int64)
        bias = None if self.bias is None else self.bias[first : first + columns]
        _core.head_block(
            self.float64,
            logits=logits.data_ptr(),
            tokens=tokens,
            columns=columns,
            column_stride=logits.stride(1),
            first=first,
            bias=0 if bias is None else bias.data_ptr(),
            scale=self.scale,
            softcap=self.softcap,
            labels=self.labels.data_ptr(),
            label_columns=label_columns.data_ptr(),
            label_count=len(inside),
            label_first=inside[0][0] if inside else 0,
            gathers=self.gathers.data_ptr(),
            distinct=self.distinct.numel(),
            **{f: t.data_ptr() for f, t in self.token.items()},
        )
        if first and products is not None:
            _core.head_rescale(
                products.data_ptr(), self.token["factor"].data_ptr(), tokens, self.float64
            )

    def reduce(self, products, inner, offsets, tilt, label) -> Tensor:
        n = offsets.numel() - 1
        gram = torch.empty(n, n, dtype=torch.float64)
        _core.head_reduce(
            self.float64,
            products=products.data_ptr(),
            inner=inner.data_ptr(),
            gathers=self.gathers.data_ptr(),
            label_index=self.label_index.data_ptr(),
            tokens=self.labels.numel(),
            distinct=self.distinct.numel(),
            offsets=offsets.data_ptr(),
            samples=n,
            tilt=tilt.data_ptr(),
            label=label.data_ptr(),
            gram=gram.data_ptr(),
        )
        return gram


def _epilogue_type(device: torch.device, dtype: torch.dtype) -> type:
    """Triton's keeps E in a form of its own; what looks into E takes plain torch beside it."""
    name, _ = head_backend.choose(device, dtype)
    return _Compiled if name == "compiled" else head_torch.Epilogue


def _problem(
    hidden, weight, labels, sample, num_samples, bias, softcap, scale, mean, first=0
) -> Problem:
    epilogue_type = _epilogue_type(hidden.device, hidden.dtype)
    labels = torch.where(labels == -100, labels, labels - first) if first else labels
    return Problem.of(
        *(hidden, weight, labels, sample, num_samples, bias, softcap, scale, mean, epilogue_type)
    )


def _nothing(problem: Problem) -> tuple[Tensor, ...]:
    """The outputs where no token has a label."""
    n, like = problem.tokens.numel(), problem.hidden
    zeros = [like.new_zeros(n, dtype=torch.float64) for _ in range(3)]
    gram = like.new_zeros((n, n), dtype=torch.float64)
    return gram, *zeros, torch.zeros_like(problem.tokens), problem.tokens


def head_gram_blocks(
    *arguments, method: str = "ghost", sketch_dim: int = 4096, seed: int = 0
) -> tuple[Tensor, ...]:
    """The operator behind `oasis.head_gram`; `softcap` 0 means none."""
    problem = _problem(*arguments)
    if problem.labels.numel() == 0:
        return _nothing(problem)
    if method == "ghost":
        triton = head_backend.choose(arguments[0].device, arguments[0].dtype)[0] == "triton"
        visit = head_triton.visit if triton else head_ghost.visit
        return head_ghost.finish(problem, *visit(problem))
    if method == "instantiate":
        return instantiate(problem)
    return sketch(problem, sketch_dim, seed)


def head_partial_blocks(*arguments, first: int) -> tuple[Tensor, ...]:
    """The operator behind `vocab_range=`: (products, inner, gathers, token, labels, tokens)."""
    problem = _problem(*arguments, first)
    return *head_ghost.partial(problem), problem.labels + first, problem.tokens


def head_merge_blocks(
    products, gathers, token, inner, labels, tokens, softcap: float, scale: float, mean: bool
) -> tuple[Tensor, ...]:
    """The operator behind `oasis.merge`: outputs as of `head_gram`."""
    owner = torch.repeat_interleave(tokens)
    epilogue_type = _epilogue_type(inner.device, inner.dtype)
    head = (None, None, softcap, scale, mean, epilogue_type)
    problem = Problem(inner, labels, owner, tokens, *head)
    if labels.numel() == 0:
        return _nothing(problem)
    return head_ghost.merge(problem, list(zip(products, gathers, token, strict=True)), inner)
