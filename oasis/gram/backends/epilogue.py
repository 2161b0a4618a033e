"""What `head_gram` does to a block of logits between its two matrix products, as an interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from oasis.gram.tensor_sketch import VocabularySketch

# Per token, float64: the peak of the off-label logits; the entry_peak of log(exp(z) f), which E is
# relative to (without a soft cap the peak); the true off-label maximum and the label's logit, both
# before the cap; and sums of e = exp(z - peak), e (peak - z) and e^2.
FIELDS = ("peak", "entry_peak", "maximum", "label_logit", "sum", "weighted", "squares")


class Epilogue(Protocol):
    """The state of T label tokens on their way through the vocabulary (docs/method.md 1.2).

    Made from labels [T] int64, label_index [T] of each among the `distinct` [L] that occur, bias
    [V] or None, scale, softcap (0: none), the dtype of the sums and tables to sketch E by.
    """

    token: dict[str, Tensor]  # FIELDS, [T] float64 each
    gathers: Tensor  # [T, L] E at every distinct label

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
    ) -> None: ...

    def block(self, logits: Tensor, first: int, products: Tensor | None) -> None:
        """Takes in the logits [T, C] of columns `first`, ... before bias, scale and cap: they
        become E in place, the label's column zero. `products` [T, T] shrink as E's peak rises."""

    def sketched(self) -> list[Tensor]:
        """Per table, [T, m]: the sketch of E so far, relative to E's peak as it stands."""
        ...

    def reduce(
        self, products: Tensor, inner: Tensor, offsets: Tensor, coefficient: Tensor, label: Tensor
    ) -> Tensor:
        """K [N, N] float64: K_ij = sum of <delta_t, delta_s> <h_t, h_s> over t in i, s in j, with
        delta_t = coefficient_t E_t - label_t e_{y_t}; lower halves of products and inner [T, T]."""
        ...
