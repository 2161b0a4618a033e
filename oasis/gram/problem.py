"""What the regimes of `head_gram` share: the label tokens, blocks of logits, per-token results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oasis.gram.algebra import mixed, multiply, segment_sum, sum_type
from oasis.gram.backends.choice import epilogue_type
from oasis.gram.backends.epilogue import Epilogue
from oasis.gram.results import Results
from oasis.gram.tensor_sketch import (
    VocabularySketch,
    WidthSketch,
    sample_sketches,
    vocabulary_sketch,
    width_sketch,
)
from oasis.names import IGNORED

BLOCK_ELEMENTS = 4 << 20  # numbers in one block of logits (16 MiB in float32)
GPU_BLOCK_ELEMENTS = 32 << 20  # the same on a GPU, where a block costs some 50 launches
_WIDE_BLOCK = 1024  # columns of logits below which products read and write T x T too often


@dataclass
class Problem:
    """The label tokens of a batch, those of one sample side by side, and the head.

    `hidden` [T, D] is of the type that products are made in: that of the sums (`work`), or as given
    where the device multiplies it so. `labels` [T] count from the first row of `weight`, and lie
    outside it where the head is a part of the vocabulary.
    """

    hidden: Tensor
    labels: Tensor
    owner: Tensor  # [T] sample of each token
    tokens: Tensor  # [N] label tokens of each sample
    weight: Tensor
    bias: Tensor | None
    softcap: float
    scale: float
    mean: bool
    backend: str  # of the epilogue: "compiled", "torch" or "triton"
    sketch: tuple[int, int] = (0, 0)  # numbers of each sample's sketch (0: none), and their seed
    first: int = 0  # position in the vocabulary of the first row of `weight`

    @classmethod
    def of(
        cls,
        hidden: Tensor,
        labels: Tensor,
        sample: Tensor,
        num_samples: int,
        weight: Tensor,
        bias: Tensor | None,
        softcap: float,
        scale: float,
        mean: bool,
        backend: str,
    ) -> Problem:
        labelled = (labels != IGNORED).nonzero().squeeze(1)
        owner = sample[labelled]
        # Tokens of one sample side by side: each entry of the result is then one rectangle.
        by_sample = torch.argsort(owner, stable=True)
        index, owner = labelled[by_sample], owner[by_sample]
        work = sum_type(hidden.dtype)
        return cls(
            hidden[index].to(hidden.dtype if mixed(hidden) else work),
            labels[index].contiguous(),
            owner,
            torch.bincount(owner, minlength=num_samples),
            weight,
            None if bias is None else bias.to(work).contiguous(),
            softcap,
            scale,
            mean,
            backend,
        )

    @property
    def work(self) -> torch.dtype:
        """float32, or float64 for float64 input: the type of logits, E and sums."""
        return sum_type(self.hidden.dtype)

    def zeros(self, *shape: int) -> Tensor:
        """Sums that have not begun."""
        return self.hidden.new_zeros(shape, dtype=self.work)

    def vocabulary_sketch(self, dim: int, seed: int) -> VocabularySketch:
        """The tables for the rows of the head that are here."""
        last = self.first + self.weight.shape[0]
        tables = vocabulary_sketch(last, dim, seed, self.work, self.hidden.device)
        return replace(tables, start=self.first)

    def width_sketch(self, dim: int, seed: int) -> WidthSketch:
        """The tables for h."""
        like = self.hidden
        return width_sketch(like.shape[1], dim, seed, self.work, like.device)

    def asked_sketches(self) -> list[VocabularySketch]:
        """The tables of the sketch that is asked for beside K: of none or one."""
        return [self.vocabulary_sketch(*self.sketch)] if self.sketch[0] else []

    def epilogue(
        self,
        rows: slice = slice(None),
        gathers: bool = True,
        sketches: Sequence[VocabularySketch] = (),
    ) -> Epilogue:
        """A fresh epilogue for these tokens; `gathers` keeps E at everybody's label, `sketches`
        are the tables that E is sketched by."""
        labels = self.labels[rows].contiguous()
        distinct, index = torch.unique(labels, sorted=True, return_inverse=True)
        if not gathers:
            distinct = distinct[:0]
        arguments = self.bias, self.scale, self.softcap, self.work, sketches
        return epilogue_type(self.backend)(labels, index, distinct, *arguments)

    def blocks(self, hidden: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        """(first column, logits [T, size]) through the vocabulary, in one buffer.

        Tokens lie side by side: the epilogue then needs no sums across a vector, and products of
        tokens read their operands in the order of memory.
        """
        vocabulary, width = self.weight.shape
        count, size = hidden.shape[0], min(size, vocabulary)
        buffer = hidden.new_empty(count * size, dtype=self.work)
        same = self.weight.dtype == hidden.dtype
        widened = None if same else hidden.new_empty((size, width))
        for first in range(0, vocabulary, size):
            rows = self.weight[first : first + size]
            if widened is not None:
                rows = widened[: rows.shape[0]].copy_(rows)
            logits = buffer[: count * rows.shape[0]].view(rows.shape[0], count)
            multiply(rows, hidden.T, out=logits)
            yield first, logits.T

    @property
    def block_elements(self) -> int:
        """Numbers that a block may hold."""
        return GPU_BLOCK_ELEMENTS if self.hidden.is_cuda else BLOCK_ELEMENTS

    def block_size(self, count: int) -> int:
        """Columns of logits at once for `count` tokens."""
        elements = self.block_elements
        if self.weight.dtype != self.hidden.dtype:  # widened weights are a block of their own
            return max(256, elements // max(count, self.weight.shape[1]))
        whole = elements // max(count, 1)
        # A quarter of that stays in a CPU's cache between the products, but for very many tokens.
        quarter = min(whole, max(whole // 4, _WIDE_BLOCK))
        return max(256, whole if self.hidden.is_cuda else quarter)

    def results(self, token: dict[str, Tensor], rows: slice = slice(None)) -> Results:
        """Losses and gradient factors of these tokens from the epilogue's final state."""
        label_logit, log_slope = self._capped(token["label_logit"])
        # Everything relative to the label's logit: a confident token keeps its small numbers.
        lead, empty = token["peak"] - label_logit, token["sum"] == 0
        off_label = torch.where(empty, -torch.inf, token["sum"].log() + lead)
        loss = torch.logaddexp(torch.zeros_like(off_label), off_label)
        ratio = torch.where(empty, 0.0, (lead - loss).exp())  # exp(peak - log-sum-exp)
        q = token["sum"] * ratio
        above = torch.where(empty, 0.0, loss - lead)  # log-sum-exp - peak
        entropy = (-loss).exp() * loss + ratio * (above * token["sum"] + token["weighted"])
        el2n = (ratio.square() * token["squares"] + q.square()).sqrt()
        # Both before the cap, where no two logits run into one.
        correct = token["label_logit"] > token["maximum"]
        share = torch.ones_like(loss)
        if self.mean:
            share = (1 / self.tokens.double())[self.owner[rows]]
        metrics = (share * loss, share * entropy, share * el2n, correct.double())
        # The largest of the label column and E is the unit, so that neither leaves float32.
        log_label = torch.where(empty, -torch.inf, token["peak"] + token["sum"].log() + log_slope)
        base = torch.maximum(log_label, token["entry_peak"])
        factor = share * self.scale * (base - label_logit - loss).exp()
        coefficient, entry_share, label_share = (
            torch.where(empty, 0.0, value)
            for value in (factor, (token["entry_peak"] - base).exp(), (log_label - base).exp())
        )
        return Results(metrics, base, entry_share, coefficient, label_share)

    def _capped(self, logit: Tensor) -> tuple[Tensor, Tensor]:
        """The logit after the soft cap, and the log of the cap's chain factor there."""
        if not self.softcap:
            return logit, torch.zeros_like(logit)
        x = logit / self.softcap
        u = torch.expm1(-2 * x.abs())
        # log(1 - tanh^2): of a saturated logit 1 - (z / cap)^2 has no digit left.
        return self.softcap * x.tanh(), 2 * (math.log(2) - x.abs() - (2 + u).log())

    def sketches(self, sketched: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Those asked for, [T, m] of E (the epilogue's, by one table or none) and of h."""
        if not self.sketch[0]:
            nothing = self.zeros(self.hidden.shape[0], 0)
            return nothing, nothing.clone()
        (deltas,) = sketched
        return deltas, self.width_sketch(*self.sketch)(self.hidden)

    def sample_sketches(self, deltas: Tensor, hidden: Tensor, r: Results) -> Tensor:
        """[N, m] float64 from what `sketches` gives after the whole vocabulary."""
        if not self.sketch[0]:
            return r.coefficient.new_empty((self.tokens.numel(), 0))
        last = int(self.labels.max()) + 1  # a merged head has no rows
        tables = vocabulary_sketch(last, *self.sketch, deltas.dtype, deltas.device)
        of_tokens = self.labels, self.owner, r, self.tokens
        sketches, unit = sample_sketches(tables, deltas, hidden, *of_tokens)
        return sketches.double() * unit.unsqueeze(1)

    def outputs(
        self, gram: Tensor, metrics: tuple[Tensor, ...], sketch: Tensor
    ) -> tuple[Tensor, ...]:
        """What the operator returns, from the Gram matrix, per-token metrics and sketches."""
        # Tokens of a sample are neighbours: a sum per segment, in the same order on every device.
        loss, entropy, el2n, correct = (segment_sum(x, self.tokens) for x in metrics)
        return gram, loss, entropy, el2n, correct.long(), self.tokens, sketch
