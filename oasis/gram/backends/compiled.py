"""The epilogue of `head_gram` in C++ (`csrc/cpu/head.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core
from oasis.gram.backends.epilogue import FIELDS
from oasis.operators.buffers import CPU, written_buffer


class Epilogue:
    """The epilogue of `csrc/cpu/head.cpp`. `token` holds the per-token state, see `HeadBlock`."""

    fields = (*FIELDS, "factor")

    def __init__(self, labels, label_index, distinct, bias, scale, softcap, dtype):
        tokens = labels.numel()
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        self.dtype, self.float64 = dtype, dtype == torch.float64
        self.token = {f: torch.zeros(tokens, dtype=torch.float64) for f in self.fields}
        for f in ("peak", "ridge", "maximum"):
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
                products.data_ptr(), self.token["factor"].data_ptr(), tokens, self.float64
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
