"""The epilogue of `head_gram` in plain torch, for devices without a compiled one.

Same mathematics and interface as `csrc/cpu/head.cpp`; every step is a whole-tensor operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oasis.gram.algebra import mirrored, segment_sum
from oasis.gram.tensor_sketch import VocabularySketch


class Epilogue:
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
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        zeros = labels.new_zeros(labels.numel(), dtype=torch.float64)
        self.token = {f: zeros.clone() for f in ("label_logit", "sum", "weighted", "squares")}
        for f in ("peak", "entry_peak", "maximum"):
            self.token[f] = zeros - torch.inf
        self.gathers = zeros.new_zeros((labels.numel(), distinct.numel()), dtype=dtype)
        self.tables = sketches
        # As the blocks of logits lie: tokens side by side.
        self.sums = [self.gathers.new_zeros((s.dim, labels.numel())).T for s in sketches]

    def block(self, logits: Tensor, first: int, products: Tensor | None) -> None:
        """In place: logits become E, the label's column zero (docs/method.md 1.2)."""
        token, columns = self.token, logits.shape[1]
        if self.bias is not None:
            logits += self.bias[first : first + columns]
        logits *= self.scale
        column = self.labels - first
        here = (column >= 0) & (column < columns)
        column = column.clamp(0, columns - 1).unsqueeze(1)
        at_label = logits.gather(1, column).squeeze(1).double()
        token["label_logit"] = torch.where(here, at_label, token["label_logit"])
        off_label = torch.where(here, -torch.inf, logits.gather(1, column).squeeze(1))
        logits.scatter_(1, column, off_label.unsqueeze(1))
        token["maximum"] = torch.maximum(token["maximum"], logits.amax(1).double())
        z, log_f = logits, None
        if self.softcap:
            z, log_f = _bent(logits, self.softcap)
            off_label = torch.where(here, -torch.inf, z.gather(1, column).squeeze(1))
            z.scatter_(1, column, off_label.unsqueeze(1))

        peak = torch.maximum(token["peak"], z.amax(1).double())
        grown, factor = _growth(token["peak"], peak)
        shift = torch.where(token["sum"] > 0, grown * token["sum"], 0.0)
        token["weighted"] = factor * (token["weighted"] + shift)
        token["sum"] = token["sum"] * factor
        token["squares"] = token["squares"] * factor.square()
        token["peak"] = peak
        # E is relative to the largest exp(z) f; with a soft cap that need not be at the largest z.
        entry = z if log_f is None else z + log_f
        entry_peak = torch.maximum(token["entry_peak"], entry.amax(1).double())
        narrow = _growth(token["entry_peak"], entry_peak)[1].to(logits.dtype)
        token["entry_peak"] = entry_peak
        if products is not None:
            products *= narrow.unsqueeze(1) * narrow
        self.gathers *= narrow.unsqueeze(1)

        below = _finite(peak).to(logits.dtype).unsqueeze(1) - z
        e = (-below).exp()
        token["sum"] += e.sum(1).double()
        token["weighted"] += torch.where(e > 0, e * below, 0).sum(1).double()
        token["squares"] += e.square().sum(1).double()
        logits.copy_((entry - _finite(entry_peak).to(logits.dtype).unsqueeze(1)).exp())
        inside = (self.distinct >= first) & (self.distinct < first + columns)
        gathered = logits[:, (self.distinct - first).clamp(0, columns - 1)]
        self.gathers = torch.where(inside, gathered, self.gathers)
        for table, sums in zip(self.tables, self.sums, strict=True):
            sums *= narrow.unsqueeze(1)
            table.add(sums, logits, first)

    def sketched(self) -> list[Tensor]:
        return [sums.contiguous() for sums in self.sums]

    def reduce(
        self, products: Tensor, inner: Tensor, offsets: Tensor, coefficient: Tensor, label: Tensor
    ) -> Tensor:
        """K_ij = sum of <delta_t, delta_s> <h_t, h_s>, t in i, s in j (docs/method.md 1.1)."""
        d = mirrored(products.double())
        cross = (self.gathers.double() * coefficient.unsqueeze(1))[:, self.label_index] * label
        d = d * (coefficient.unsqueeze(1) * coefficient) - cross - cross.T
        same = self.label_index.unsqueeze(1) == self.label_index
        d += torch.where(same, label.unsqueeze(1) * label, 0.0)
        d *= mirrored(inner.double())
        # Segment sums, not products with a membership matrix: 0 x NaN would spread.
        lengths = offsets.diff()
        return mirrored(segment_sum(segment_sum(d, lengths).T.contiguous(), lengths))


def _bent(x: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """cap tanh(x / cap), and log(1 - tanh^2), its chain factor, in a form that never cancels."""
    x = x / cap
    u = (-2 * x.abs()).exp()
    return cap * x.tanh(), 2 * (math.log(2) - x.abs() - u.log1p())


def _growth(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """new - old of a running maximum, 0 where it did not move (also from -inf to -inf), and what
    earlier results shrink by."""
    grown = torch.where(new == old, 0.0, new - old)
    return grown, (-grown).exp()


def _finite(maximum: Tensor) -> Tensor:
    return torch.where(maximum.isneginf(), 0.0, maximum)
