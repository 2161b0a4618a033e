"""Shares of clusters, kept over a stream of batches that are smaller than the clusters are many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FORGET = 0.99  # per batch


class RunningQuotas:
    """Turns shares (of all that is selected) into counts for one small batch after another.

    With four slots and 32 clusters no batch can give every cluster its share, and most clusters are
    not in it. So each cluster has a credit: a batch with k slots adds k x its share to it, whether
    it is there or not, and a slot that it gets costs 1. The slots of a batch go one at a time to
    the cluster with the largest credit (ties: the lowest index) of those that still have a
    candidate: in one batch that is the method of largest remainders, over the stream the counts
    come to the shares. A cluster whose share is more than it has gives the rest to the others, as
    the offline originals do; the credit it piles up is forgotten at 1 % a batch, so that what was
    100 batches ago hardly counts.
    """

    def __init__(self) -> None:
        self.credit = torch.zeros(0, dtype=torch.float64)

    def split(self, slots: int, shares: Tensor, available: Tensor) -> list[int]:
        """Slots of each of K clusters.

        Args:
            slots: to give away, at most the sum of `available`.
            shares: [K], each >= 0; only their proportions count.
            available: [K] int64, candidates of each cluster in this batch.
        """
        if slots == 0:
            return [0] * len(shares)
        missing = len(shares) - len(self.credit)
        if missing > 0:
            self.credit = torch.cat([self.credit, self.credit.new_zeros(missing)])
        shares = shares.double()
        self.credit *= FORGET
        self.credit[: len(shares)] += slots * shares / shares.sum()
        left, counts = available.tolist(), [0] * len(shares)
        credit = self.credit.tolist()
        for _ in range(slots):
            best = max((c for c in range(len(left)) if left[c] > 0), key=lambda c: (credit[c], -c))
            counts[best] += 1
            left[best] -= 1
            credit[best] -= 1
        self.credit = torch.tensor(credit, dtype=torch.float64)
        return counts

    def state_dict(self) -> dict[str, Any]:
        return {"credit": self.credit.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.credit = state["credit"].cpu().clone()


def softmax_shares(scores: Tensor, temperature: float, present: Tensor) -> Tensor:
    """softmax(scores / temperature) [K] over the clusters that are `present` [K] bool; 0 elsewhere.
    Where none is, all are equal.
    """
    if not present.any():
        return torch.full(scores.shape, 1 / len(scores), dtype=torch.float64)
    return (scores.double() / temperature).masked_fill(~present, -torch.inf).softmax(dim=0)
