"""The epilogue of `head_gram` in C++ (`csrc/cpu/head.cpp`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oasis import _core
from oasis.gram.backends.epilogue import FIELDS
from oasis.gram.tensor_sketch import VocabularySketch
from oasis.operators.buffers import CPU, address, written_buffer

_PANEL = _core.HEAD_PANEL  # tokens whose sketches lie side by side


class Epilogue:
    """The epilogue of `csrc/cpu/head.cpp`. `token` holds the per-token state, see `HeadBlock`."""

    fields = (*FIELDS, "factor")

    def __init__(
        self,
        labels: Tensor,
        label_index: Tensor,
        distinct: Tensor,
        bias: Tensor | None,
        scale: float,
        softcap: float,
        dtype: torch.dtype,
        sketches: Sequence[VocabularySketch] = (),
    ) -> None:
        tokens = labels.numel()
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        self.dtype, self.float64 = dtype, dtype == torch.float64
        self.token = {f: torch.zeros(tokens, dtype=torch.float64) for f in self.fields}
        for f in ("peak", "entry_peak", "maximum"):
            self.token[f].fill_(-torch.inf)
        self.gathers = torch.zeros(tokens, distinct.numel(), dtype=dtype)
        self.sorted_labels = distinct.tolist()
        self._start_sketches(sketches)

    def _start_sketches(self, sketches: Sequence[VocabularySketch]) -> None:
        """One accumulator for all tables, one below the other: [panels, buckets, tokens]."""
        self.dims = [s.dim for s in sketches]
        panels = -(-self.labels.numel() // _PANEL) if sketches else 0
        self.sketch = torch.zeros(panels, sum(self.dims), _PANEL, dtype=self.dtype)
        above = [sum(self.dims[:k]) for k in range(len(sketches))]
        own = [(s.buckets[s.start :], s.signs[s.start :]) for s in sketches]
        none = torch.empty(0, 0)
        self.buckets = none.to(torch.int32)
        self.signs = none.to(self.dtype)
        if own:
            rows = [buckets + first for (buckets, _), first in zip(own, above, strict=True)]
            self.buckets = torch.stack(rows)
            self.signs = torch.stack([signs for _, signs in own])

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
        count, vocabulary = self.buckets.shape
        self._check("sketch", self.sketch, self.dtype, *self.sketch.shape)
        self._check("buckets", self.buckets, torch.int32, count, vocabulary)
        self._check("signs", self.signs, self.dtype, count, vocabulary)

    def _check_reduce(
        self, products: Tensor, inner: Tensor, offsets: Tensor, coefficient: Tensor, label: Tensor
    ) -> None:
        tokens = self.labels.numel()
        for name, tensor in (("products", products), ("inner", inner)):
            self._check(name, tensor, self.dtype, tokens, tokens)
        self._check("gathers", self.gathers, self.dtype, tokens, self.distinct.numel())
        self._check("label_index", self.label_index, torch.int64, tokens)
        self._check("offsets", offsets, torch.int64, offsets.numel())
        for name, tensor in (("coefficient", coefficient), ("label", label)):
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
            bias=address(bias),
            scale=self.scale,
            softcap=self.softcap,
            labels=self.labels.data_ptr(),
            label_columns=label_columns.data_ptr(),
            label_count=len(inside),
            label_first=inside[0][0] if inside else 0,
            gathers=self.gathers.data_ptr(),
            distinct=self.distinct.numel(),
            sketch=self.sketch.data_ptr(),
            sketch_rows=self.sketch.shape[1],
            sketches=len(self.dims),
            buckets=self.buckets.data_ptr(),
            signs=self.signs.data_ptr(),
            vocabulary=self.buckets.shape[1],
            **{f: t.data_ptr() for f, t in self.token.items()},
        )
        if first and products is not None:
            _core.head_rescale(
                products.data_ptr(), self.token["factor"].data_ptr(), tokens, self.float64
            )

    def sketched(self) -> list[Tensor]:
        side_by_side = self.sketch.transpose(1, 2).flatten(0, 1)[: self.labels.numel()]
        return [sums.contiguous() for sums in side_by_side.split(self.dims, dim=1)]

    def reduce(
        self, products: Tensor, inner: Tensor, offsets: Tensor, coefficient: Tensor, label: Tensor
    ) -> Tensor:
        self._check_reduce(products, inner, offsets, coefficient, label)
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
            coefficient=coefficient.data_ptr(),
            label=label.data_ptr(),
            gram=gram.data_ptr(),
        )
        return gram
