"""`head_gram` by blocks of the vocabulary (docs/method.md 1.1 and 1.2): its regimes' driver.

Matrix products are torch's. What lies between them is the compiled epilogue on the CPU, Triton
(`oasis.kernels.triton`) or plain torch (`oasis.head_torch`) on a GPU: see `oasis.head_backend`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core, head_backend, head_cost, head_ghost, head_torch, head_triton
from oasis.buffers import CPU, check_buffer, written_buffer
from oasis.checks import check_head_tensors
from oasis.head_instantiate import instantiate
from oasis.head_problem import Problem
from oasis.head_sketch import sketch


class _Compiled:
    """The epilogue of `csrc/cpu/head.cpp`. `token` holds the per-token state, see `HeadBlock`."""

    fields = ("peak", "maximum", "label_logit", "sum", "weighted", "squares", "factor")

    def __init__(self, labels, label_index, distinct, bias, scale, softcap, dtype):
        tokens = labels.numel()
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        self.dtype, self.float64 = dtype, dtype == torch.float64
        self.token = {f: torch.zeros(tokens, dtype=torch.float64) for f in self.fields}
        for f in ("peak", "maximum"):
            self.token[f].fill_(-torch.inf)
        self.gathers = torch.zeros(tokens, distinct.numel(), dtype=dtype)
        self.sorted_labels = distinct.tolist()

    def _check(self, name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
        """`written_buffer` also for what is only read: a copy would be lost at its address."""
        written_buffer(name, tensor, dtype, shape, CPU)

    def _check_block(self, logits: Tensor, products: Tensor | None, bias: Tensor | None) -> None:
        tokens, columns = logits.shape
        self._check("logits", logits.T, self.dtype, columns, self.labels.numel())
        self._check("labels", self.labels, torch.int64, tokens)
        self._check("gathers", self.gathers, self.dtype, tokens, self.distinct.numel())
        for name in self.fields:
            self._check(name, self.token[name], torch.float64, tokens)
        if bias is not None:
            self._check("bias", bias, self.dtype, columns)
        if products is not None:
            self._check("products", products, self.dtype, tokens, tokens)

    def _check_reduce(self, products, inner, offsets, tilt, label) -> None:
        tokens = self.labels.numel()
        for name, tensor in (("products", products), ("inner", inner)):
            self._check(name, tensor, self.dtype, tokens, tokens)
        self._check("gathers", self.gathers, self.dtype, tokens, self.distinct.numel())
        self._check("label_index", self.label_index, torch.int64, tokens)
        self._check("offsets", offsets, torch.int64, offsets.numel())
        for name, tensor in (("tilt", tilt), ("label", label)):
            self._check(name, tensor, torch.float64, tokens)

    def block(self, logits: Tensor, first: int, products: Tensor | None) -> None:
        """Logits [T, C], tokens side by side in memory, become E in place; `products` shrink
        as the peaks grow."""
        tokens, columns = logits.shape
        inside = [
            (i, y - first) for i, y in enumerate(self.sorted_labels) if first <= y < first + columns
        ]
        label_columns = torch.tensor([column for _, column in inside], dtype=torch.int64)
        bias = None if self.bias is None else self.bias[first : first + columns]
        self._check_block(logits, products, bias)
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
                products.data_ptr(),
                self.gathers.data_ptr(),
                self.token["factor"].data_ptr(),
                tokens,
                self.distinct.numel(),
                self.float64,
            )

    def reduce(self, products, inner, offsets, tilt, label) -> Tensor:
        self._check_reduce(products, inner, offsets, tilt, label)
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
    check_head_tensors(hidden, weight, labels, sample, bias)
    epilogue_type = _epilogue_type(hidden.device, hidden.dtype)
    problem = Problem.of(
        *(hidden, weight, labels, sample, num_samples, bias, softcap, scale, mean, epilogue_type)
    )
    if problem.tokens.numel() != num_samples:
        raise ValueError(f"sample: got {int(sample.max())}, expected 0 to {num_samples - 1}")
    if first:  # of those with a label: one shifted by `first` may be -100 itself
        problem.labels -= first
    return problem


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
    if method not in head_cost.METHODS:
        expected = ", ".join(head_cost.METHODS)
        raise ValueError(f"method: got {method!r}, expected one of {expected}")
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


def _check_parts(products, gathers, token, inner, labels, tokens) -> None:
    """Types, shapes and devices of what `head_merge_blocks` takes."""
    if not len(products) == len(gathers) == len(token) >= 1:
        counts = len(products), len(gathers), len(token)
        raise ValueError(f"products, gathers, token: got {counts} parts, expected equally many")
    device, count = inner.device, labels.numel()
    check_buffer("labels", labels, torch.int64, (count,), device)
    check_buffer("tokens", tokens, torch.int64, (tokens.numel(),), device)
    check_buffer("inner", inner, (torch.float32, torch.float64), (count, count), device)
    if int(tokens.sum()) != count or (tokens < 0).any():
        raise ValueError(f"tokens: got {tokens.tolist()}, expected counts that add to {count}")
    distinct = labels.unique().numel()
    for i, (product, at_labels, state) in enumerate(zip(products, gathers, token, strict=True)):
        check_buffer(f"products[{i}]", product, inner.dtype, (count, count), device)
        check_buffer(f"gathers[{i}]", at_labels, inner.dtype, (count, distinct), device)
        fields = len(head_ghost.FIELDS)
        check_buffer(f"token[{i}]", state, torch.float64, (fields, count), device)


def head_merge_blocks(
    products, gathers, token, inner, labels, tokens, softcap: float, scale: float, mean: bool
) -> tuple[Tensor, ...]:
    """The operator behind `oasis.merge`: outputs as of `head_gram`."""
    _check_parts(products, gathers, token, inner, labels, tokens)
    products, gathers = ([x.contiguous() for x in each] for each in (products, gathers))
    inner = inner.contiguous()
    owner = torch.repeat_interleave(tokens)
    epilogue_type = _epilogue_type(inner.device, inner.dtype)
    head = (None, None, softcap, scale, mean, epilogue_type)
    problem = Problem(inner, labels, owner, tokens, *head)
    if labels.numel() == 0:
        return _nothing(problem)
    return head_ghost.merge(problem, list(zip(products, gathers, token, strict=True)), inner)
