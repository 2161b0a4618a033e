"""Ways to choose that are tried on frozen states and are not offered (yet)."""

from __future__ import annotations

from typing import Any

import torch

from oasis import Selection, operators, policies
from oasis.names import COUNTERS
from oasis.policies import Signals
from oasis.policies.balanced import Counts


class Residual(policies.Resumable):
    """Of what the remembered samples leave, a fixed share of every batch, by the residual rule (as
    `oasis` with draw="even" has it) or drawn; with sketches of any size.

    Args:
        ratio, seed: as of every policy.
        remember, memory_ridge, ridge: as of `oasis.Selector`.
        draw: "top" (the picks of the residual rule, in their order) or "norm" (without replacement
            with probabilities in proportion to the norm of what is left).
        width: numbers of a sketch; the more, the nearer to exact inner products.
    """

    name = "residual"
    needs = frozenset({"gram", "sketch"})
    parts = ("generator",)

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        remember: int = 64,
        memory_ridge: float = 0.1,
        ridge: float = 1.0,
        draw: str = "top",
        width: int = 512,
    ):
        self.budget = policies.Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)
        self.options: dict[str, Any] = {"ridge": ridge, "memory_ridge": memory_ridge, "draw": draw}
        self.width = width
        self.memory = torch.zeros(remember, width, dtype=torch.float64)
        self.counters = torch.zeros(len(COUNTERS), dtype=torch.int64)

    def observe(self, signals: Signals) -> Selection:
        valid = signals.tokens > 0
        left, rows = self.left(signals, valid)
        count = self.budget.take(int(valid.sum()))
        if self.options["draw"] == "top":
            floor = torch.tensor(-torch.inf, dtype=torch.float64)
            _, order = operators.siren(left, valid, floor, "residual", self.options["ridge"])
        else:
            uniform = torch.rand(len(left), generator=self.generator, dtype=torch.float64)
            order = (left.diagonal().log() / 2 - (-uniform.log()).log()).argsort(descending=True)
        mask = torch.zeros(len(left), dtype=torch.bool)
        mask[order[:count]] = True
        self.keep(rows, order[:count], mask)
        return policies.unscored(mask)

    def left(self, signals: Signals, valid: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What the remembered samples leave of the Gram matrix [N, N], and what to remember of each
        candidate."""
        ridge = self.options["memory_ridge"]
        given = signals.gram, signals.sketch, valid
        return operators.remembered(*given, self.memory, self.counters, ridge)

    def keep(self, rows: Any, picked: torch.Tensor, mask: torch.Tensor) -> None:
        """Remember the selected of `rows`: `picked` in their order, as `mask` [N] says."""
        self.counters[COUNTERS["selected"]] += len(picked)
        operators.remember_(rows, mask, self.counters, self.memory)


policies.register("residual", Residual)


class Aligned(policies.Resumable):
    """Those whose gradients are most along the mean gradient of the stream so far: what one step on
    them alone takes off the loss of all, to first order (GREATS, with the stream for validation).

    Args:
        ratio, seed: as of every policy.
        beta: weight of the newest batch in the running mean.
    """

    name = "aligned"
    needs = frozenset({"sketch"})

    def __init__(self, ratio: float = 0.25, seed: int = 0, *, beta: float = 0.1):
        self.budget = policies.Budget(ratio)
        self.beta = beta
        self.mean: torch.Tensor | None = None

    def observe(self, signals: Signals) -> Selection:
        tokens, sketch = signals.tokens.double(), signals.sketch.double()
        newest = tokens @ sketch / tokens.sum()  # of all tokens of the batch
        known = newest if self.mean is None else self.mean
        scores = torch.where(tokens > 0, tokens.sqrt() * (sketch @ known), -torch.inf)
        self.mean = known + self.beta * (newest - known)
        mask = torch.zeros(len(tokens), dtype=torch.bool)
        count = self.budget.take(int((tokens > 0).sum()))
        mask[scores.argsort(descending=True)[:count]] = True
        return policies.unscored(mask)


policies.register("aligned", Aligned)


class Counted(policies.Resumable):
    """One after the other the candidate with the largest loss over (1 + how often its answer has
    been selected) ** power: `balanced` and top-k by loss in one.

    Args:
        ratio, seed: as of every policy; nothing is drawn.
        power: 0 is top-k by loss; the more, the nearer to `balanced`.
    """

    name = "counted"
    needs = frozenset({"loss"})
    parts = ("counts",)

    def __init__(self, ratio: float = 0.25, seed: int = 0, *, power: float = 0.5):
        self.budget = policies.Budget(ratio)
        self.counts = Counts()
        self.power = power

    def observe(self, signals: Signals) -> Selection:
        losses, answers = signals.loss.tolist(), signals.answer.tolist()
        left = (signals.tokens > 0).nonzero().flatten().tolist()
        mask = torch.zeros(signals.num_samples, dtype=torch.bool)
        for _ in range(self.budget.take(len(left))):
            row = max(
                left, key=lambda i: losses[i] / (1 + self.counts.of[answers[i]]) ** self.power
            )
            left.remove(row)
            self.counts.of[answers[row]] += 1
            mask[row] = True
        return policies.unscored(mask)


policies.register("counted", Counted)
