"""What `oasis.head_gram` and `oasis.merge` return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadGram:
    """What one pass over the vocabulary yields per sample (N samples).

    Attributes:
        gram: [N, N] float64, inner products of the head's gradients; zero rows without labels.
        loss: [N] float64, cross-entropy in nats, mean (or sum) over the sample's label tokens.
        entropy: [N] float64, entropy of the predictions in nats, likewise.
        el2n: [N] float64, ||softmax(z) - onehot(y)||, likewise.
        correct: [N] int64, label tokens whose label has the strictly largest logit.
        tokens: [N] int64, label tokens.
        reduction: "mean" or "sum", over the tokens of a sample.
        method: the regime used: "ghost", "instantiate", "sketch", "folded" or "float8".
        sketch: [N, S] float64, a sketch of each gradient (`head_gram(sketch=S)`), or None: inner
            products of sketches estimate those of the gradients, those of other calls with the same
            head, S and seed as well. Zero without labels.
        seed: of the sketch.
    """

    gram: Tensor
    loss: Tensor
    entropy: Tensor
    el2n: Tensor
    correct: Tensor
    tokens: Tensor
    reduction: str = "mean"
    method: str = "ghost"
    sketch: Tensor | None = None
    seed: int = 0

    @property
    def perplexity(self) -> Tensor:
        """[N] exp of the mean loss per label token; 1 without label tokens."""
        count = self.tokens.clamp(min=1) if self.reduction == "sum" else 1
        return (self.loss / count).exp()


def gathered(results: Sequence[Tensor], reduction: str, method: str, seed: int) -> HeadGram:
    """What the operators return, with names."""
    gram, loss, entropy, el2n, correct, tokens, sketch = results
    known = sketch if sketch.shape[1] else None
    return HeadGram(gram, loss, entropy, el2n, correct, tokens, reduction, method, known, seed)


@dataclass(frozen=True)
class HeadGramPartial:
    """Sums over the rows [first, last) of the head, for `oasis.merge`. T label tokens, L labels.

    Attributes:
        vocab_range: (first, last).
        products, inner: [T, T] sums of E E^T, and h h^T; lower triangles.
        gathers: [T, L] E at every distinct label.
        token: [7, T] float64 running maxima and sums.
        deltas, hidden: [T, S] sketches of E and of h; S is 0 where none are asked for.
        labels: [T] int64 of the label tokens, sample by sample; tokens: [N] int64, how many.
        softcap (0: none), scale, reduction, seed: as given.
    """

    vocab_range: tuple[int, int]
    products: Tensor
    inner: Tensor
    gathers: Tensor
    token: Tensor
    deltas: Tensor
    hidden: Tensor
    labels: Tensor
    tokens: Tensor
    softcap: float
    scale: float
    reduction: str
    seed: int
