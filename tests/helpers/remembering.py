"""A remembering Selector by hand: a list of gradients, and the formula of docs/method.md 2.4."""

from __future__ import annotations

import torch

from oasis import reference
from oasis.names import COUNTERS


def counters(selected: int) -> torch.Tensor:
    """A Selector's counters after that many selections."""
    out = torch.zeros(len(COUNTERS), dtype=torch.int64)
    out[COUNTERS["selected"]] = selected
    return out


def everyone(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


class ByHand:
    """Remembers the last m selected gradients [P] themselves."""

    def __init__(self, m: int, ridge: float = 0.1):
        self.m, self.ridge, self.kept = m, ridge, []

    def left(self, grads: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        """[N, N] what the remembered gradients leave; zero for samples that are not valid."""
        grads = grads.double()
        valid = everyone(len(grads)) if valid is None else valid
        grads = torch.where(valid[:, None], grads, 0.0)
        memory = torch.stack(self.kept) if self.kept else grads.new_zeros(0, grads.shape[1])
        gram = grads @ grads.T
        return reference.remembered(gram, grads, valid, memory, self.ridge)[0]

    def remember(self, grads: torch.Tensor, mask: torch.Tensor) -> None:
        self.kept = (self.kept + list(grads.double()[mask]))[-self.m :]
