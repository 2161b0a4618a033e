"""How far two ways of scoring agree, inside candidate batches."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from scipy import stats
from torch import Tensor


def agreement(pairs: Sequence[tuple[Tensor, Tensor]], most: int) -> tuple[float, float]:
    """Of the scores [N] of each batch by either way: the mean rank correlation (Spearman), and the
    share of the `most` highest that both have.
    """
    ranks = [stats.spearmanr(a.numpy(), b.numpy()).statistic for a, b in pairs]
    both = [
        len(set(a.topk(most).indices.tolist()) & set(b.topk(most).indices.tolist()))
        for a, b in pairs
    ]
    return fmean(ranks), fmean(both) / most
