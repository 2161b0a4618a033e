"""`head_gram` by folded tokens with the Triton kernels: E is never in memory."""

from __future__ import annotations

import torch
from oasis.kernels.triton.head_fold import features_kernel, fold_kernel
from oasis.kernels.triton.visit import Segments, Visit
from torch import Tensor

from oasis.gram.algebra import multiply
from oasis.gram.rates import Entries
from oasis.gram.tensor_sketch import VocabularySketch


class Folded(Visit):
    """The state of T tokens whose E is folded as it is made (docs/method.md 1.2)."""

    def __init__(
        self,
        segments: Segments,
        bias: Tensor | None,
        softcap: float,
        scale: float,
        entries: Entries,
        table: VocabularySketch | None,
        fold: VocabularySketch,
    ):
        super().__init__(segments, bias, softcap, scale, entries, table)
        self.fold = fold.without(segments.labels.long())
        self.factor = self.gathers.new_empty(segments.count)
        self.folds = self.gathers.new_empty((segments.count, fold.dim))

    def vocabulary(self, h: Tensor, weight: Tensor) -> Tensor:
        """What takes the place of the sums of E E^T, [T, T]."""
        size = self.segments.size
        for first in range(0, weight.shape[0], size):
            logits = multiply(h, weight[first : first + size].T)
            self.add_folds(logits, first, self.fold, self.folds, again=False)
            if self.table is not None:
                self.add_folds(logits, first, self.table, self.sketches, again=True)
            del logits  # before the next block takes memory
        features = self.features()
        return multiply(features, features.T)

    def add_folds(
        self, logits: Tensor, first: int, table: VocabularySketch, folds: Tensor, again: bool
    ) -> None:
        """Takes in logits [T, C] of columns `first`, ...; `again`: those of the last call."""
        s, blocks = self.segments, self.blocks
        fold_kernel[(s.count,)](
            logits, logits.stride(0), logits if self.bias is None else self.bias, s.labels,
            s.ordered_labels, s.bounds[first // s.size :], self.gathers, self.state, self.factor,
            folds, table.buckets, table.signs, first, logits.shape[1], s.count, table.dim,
            self.scale, self.softcap, HAS_BIAS=self.bias is not None, HAS_CAP=self.softcap != 0,
            AGAIN=again, BLOCK=blocks.folds, num_warps=blocks.column_warps,
            maxnreg=blocks.capped_registers if self.softcap else blocks.column_registers,
        )  # fmt: skip

    def features(self) -> Tensor:
        """[T, m + T]: folds, and E at everybody's label; rounded as E would be."""
        s, dim, step = self.segments, self.fold.dim, self.blocks.folds
        dtype = torch.float16 if self.kind.planes == 1 else torch.float32
        features = self.folds.new_empty((s.count, dim + s.count), dtype=dtype)
        features_kernel[(s.count, -(-(dim + s.count) // step))](
            self.folds, self.gathers, s.ordered_labels, self.state, features, s.count, dim,
            self.softcap, HAS_CAP=self.softcap != 0, BLOCK=step,
        )  # fmt: skip
        return features
