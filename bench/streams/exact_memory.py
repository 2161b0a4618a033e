"""The policy `exact_memory`: the 64 samples selected last remembered by their whole gradients.

What the package keeps of a remembered sample is a sketch of 512 numbers. Here it is the factors of
its gradient over the output head, delta [T, V] and h [T, D] of its label tokens, so that inner
products with it are exact. Otherwise this is `oasis` with remember=64 and draw="even", and what
docs/method.md 2.4 calls the prototype. For grids: `imports: [bench.streams.exact_memory]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.frozen.ideas import Residual
from oasis import policies
from oasis.policies import Signals
from oasis.train.batch.subbatch import targets
from oasis.train.head import head_weight
from oasis.train.signals import compute

Factors = tuple[Tensor, Tensor]  # c_t delta_t [T, V] and h_t [T, D] of one sample

_scores = compute.head_scores
_latest: list[Factors] = []


def head_scores(module: nn.Module, hidden: Tensor, labels: Tensor, *args: Any, **kwargs: Any):
    """The trainer's, which also keeps the factors of the candidates that it scores."""
    known = head_weight(module)
    weight = known.rows(0, known.shape[0]).float()
    _latest.clear()
    for states, row, where in zip(hidden, labels, targets(labels), strict=True):
        h = states[where].float()
        delta = (h @ weight.T).softmax(dim=1)
        delta[torch.arange(len(h)), row.roll(-1)[where]] -= 1
        _latest.append((delta / max(1, len(h)), h))
    return _scores(module, hidden, labels, *args, **kwargs)


def products(a: list[Factors], b: list[Factors]) -> Tensor:
    """[len(a), len(b)] float64 inner products of gradients."""

    def sums(x: list[Factors]) -> Tensor:
        rows = torch.arange(len(x)).repeat_interleave(torch.tensor([len(h) for _, h in x]))
        return nn.functional.one_hot(rows, len(x)).double()

    (deltas, states), (others, their_states) = (
        tuple(torch.cat(parts) for parts in zip(*x, strict=True)) for x in (a, b)
    )
    pairs = (deltas @ others.T).double() * (states @ their_states.T).double()
    return sums(a).T @ pairs @ sums(b)


class ExactMemory(Residual):
    """`residual` with the factors of the remembered samples in place of their sketches.

    Args:
        ratio, seed, remember, memory_ridge, ridge, draw: as of `residual`.
    """

    name = "exact_memory"
    needs = frozenset({"gram"})

    def __init__(self, ratio: float = 0.25, seed: int = 0, *, remember: int = 64, **options: Any):
        super().__init__(ratio, seed, remember=remember, **options)
        compute.head_scores = head_scores  # no signal carries the factors
        self.remember, self.factors = remember, list[Factors]()

    def left(self, signals: Signals, valid: Tensor) -> tuple[Tensor, list[Factors]]:
        gram, rows = signals.gram.double(), list(_latest)
        if self.factors:
            inner = products(self.factors, self.factors)
            inner.diagonal().add_(self.options["memory_ridge"] * gram.diagonal()[valid].mean())
            across = products(rows, self.factors)
            gram = gram - across @ torch.linalg.solve(inner, across.T)
        return gram, rows

    def keep(self, rows: list[Factors], picked: Tensor, mask: Tensor) -> None:
        self.factors = [*self.factors, *(rows[i] for i in picked.tolist())][-self.remember :]


policies.register("exact_memory", ExactMemory)
