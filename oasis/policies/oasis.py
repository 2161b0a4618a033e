"""Ours, behind the protocol of all the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oasis import Selection, Selector

from .base import Signals, register
from .metrics import METRICS, check_metric, informativeness


class Oasis:
    """Rule: of each batch as many as sigmoid(z - threshold) sums to, those with the largest z (the
    paper draws each with that probability: draw="bernoulli"). z is the informativeness left after
    the redundancy with already picked samples, relative to running statistics of the stream
    (docs/method.md 1 to 4; the paper's SIREN and ORIS). All of it is `oasis.Selector`.

    Original: the paper's equations are `preset="paper"`, the authors' code is `preset="released"`;
    both are online as they stand, with a fixed threshold, so the ratio comes out as it may. Here,
    with the default preset: the threshold is steered and the budget never exceeded. Differences of
    that preset: residual SIREN, the deviation within batches, the largest z of a batch in place of
    independent draws (docs/method.md 4.1, and docs/defaults.md for why).

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: seed of the selector's own generator.
        nonfinite: "skip" (default here, since one bad sample should not end a training run: it is
            left out and counted) or "raise" (default of `oasis.Selector`).
        metric: what counts as informative (the paper's metric table): "fisher" (the squared norm
            of the last-layer gradient), or in its place "loss", "perplexity", "entropy", "el2n";
            redundancy goes by the gradients' cosines in any case. "token_fisher" is ours: "fisher"
            times the label tokens, which is about the squared norm of one token's gradient. A mean
            over n independent gradients has an n-th of that, so "fisher" prefers short answers.
        selector: an `oasis.Selector` to use; it is set to `nonfinite` and otherwise left as it is,
            and of the other arguments only `metric` is looked at.
        options: passed to `oasis.Selector` (preset, beta, scale, siren, ridge, draw, remember,
            memory_ridge, ...). With remember=m candidates are judged by what the gradients of the m
            samples selected last leave of theirs; sketches of the gradients are needed for that.
    """

    name = "oasis"

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        nonfinite: str = "skip",
        metric: str = "fisher",
        selector: Selector | None = None,
        **options: Any,
    ):
        if selector is None:
            selector = Selector(ratio, seed=seed, nonfinite=nonfinite, **options)
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite: got {nonfinite!r}, expected 'raise' or 'skip'")
        selector.nonfinite = nonfinite
        self.metric = check_metric(metric)
        memory = {"sketch"} if selector.preset.remember else set()
        self.needs = frozenset({"gram", METRICS[metric], *memory})
        self.selector = selector
        self._size = 1

    def observe(self, signals: Signals) -> Selection:
        gram = self._given(signals, "gram")
        sketch = self._given(signals, "sketch") if "sketch" in self.needs else None
        scores = None
        if self.metric == "token_fisher":  # gradients longer by the root of the tokens
            root = self._given(signals, "tokens").to(gram).sqrt()
            gram = gram * root * root[:, None]
            sketch = None if sketch is None else sketch * root[:, None]
        elif self.metric != "fisher":
            scores = informativeness(signals, self.metric, self.name)
        valid = None if signals.tokens is None else signals.tokens > 0
        if self.selector.statistics.device != gram.device:
            self.selector.to(gram.device)
        selection = self.selector.select(gram=gram, valid=valid, scores=scores, sketch=sketch)
        self._size = signals.num_samples
        return selection

    def _given(self, signals: Signals, name: str) -> Tensor:
        value: Tensor | None = getattr(signals, name)
        if value is None:
            raise ValueError(f"signals.{name}: got None, the policy {self.name!r} needs it")
        return value

    def statistics(self) -> dict[str, float]:
        """Threshold, mean and deviation as they stand after the last batch: what the next one, if
        of the same size, is judged by.
        """
        selector = self.selector
        return {
            "threshold": float(selector.threshold),
            "mean": float(selector.mean),
            "deviation": float(selector.deviation(self._size)),
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.selector.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.selector.load_state_dict(state)


register("oasis", Oasis)
