"""The most informative samples of each batch, and nothing else: what ours is built upon."""

from __future__ import annotations

from oasis import Selection

from .base import Budget, Signals, candidates, outcome, register
from .metrics import METRICS, check_metric, informativeness
from .resumable import Resumable


class Vanilla(Resumable):
    """Rule: the k most informative samples of the candidate batch (ties: lowest index).

    Source: the "vanilla top-k" row of the paper's component ablation: neither redundancy (SIREN)
    nor comparison over time (ORIS). Online as it stands. k is what brings the running total to
    floor(ratio * candidates), where the original keeps a fixed number of every batch.

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: without effect, nothing is drawn.
        metric: "fisher" (squared norm of the last-layer gradient, the paper's), "token_fisher"
            (that times the label tokens), "loss", "perplexity", "entropy" or "el2n".
    """

    name = "vanilla"

    def __init__(self, ratio: float = 0.25, seed: int = 0, *, metric: str = "fisher"):
        self.budget = Budget(ratio)
        self.metric = check_metric(metric)
        self.needs = frozenset({METRICS[metric]})

    def observe(self, signals: Signals) -> Selection:
        scores = informativeness(signals, self.metric, self.name)
        indices, skipped = candidates(signals, scores)
        count = self.budget.take(len(indices))
        ranked = indices[scores[indices].argsort(descending=True, stable=True)]
        return outcome(signals, ranked[:count], skipped, scores=scores)


register("vanilla", Vanilla)
