"""Candidates that return: those whose last score was low are not scored again (`rescore`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oasis import Selection
from oasis.policies import Policy

OFF = "leave rescore off"
GIVES_NONE = f"rescore: got {{}} and the policy {{!r}}, which gives no scores to go by; {OFF}"


class LastScores:
    """What the policy last made of each item (`score_of`): its adjusted score, where it adjusts,
    else its informativeness.

    Args:
        share: of the returning candidates of a batch that are scored again, rounded up: those with
            the highest last scores.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.scores: dict[int, float] = {}

    def worth(self, items: Sequence[int]) -> Tensor:
        """Ascending rows of the candidates that are to be scored: new ones and that share."""
        back = [row for row, item in enumerate(items) if item in self.scores]
        back.sort(key=lambda row: -self.scores[items[row]])
        left = set(back[math.ceil(self.share * len(back)) :])
        return torch.tensor([row for row in range(len(items)) if row not in left])

    def keep(self, items: Sequence[int], judged: Tensor, selection: Selection, name: str) -> None:
        """Take in the scores of the candidates that were `judged` [N] (bool) by the policy `name`.

        Raises:
            ValueError: it gives no scores.
        """
        score = score_of(selection)
        if score is None:
            raise ValueError(GIVES_NONE.format(self.share, name))
        known = judged.cpu() & ~selection.skipped.cpu() & score.isfinite().cpu()
        for row in known.nonzero().flatten().tolist():
            self.scores[items[row]] = float(score[row])

    def state_dict(self) -> dict[str, Tensor]:
        items, scores = list(self.scores), list(self.scores.values())
        return {
            "items": torch.tensor(items, dtype=torch.int64),
            "scores": torch.tensor(scores, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.scores = dict(zip(state["items"].tolist(), state["scores"].tolist(), strict=True))


def score_of(selection: Selection) -> Tensor | None:
    """What the policy made of each candidate, [N]; None of one that gives no scores."""
    return selection.informativeness if selection.adjusted is None else selection.adjusted


def spread(known: Mapping[str, Tensor | None], rows: Tensor, count: int) -> dict[str, Any]:
    """Signals of some `rows` as those of all `count` candidates, zero for the others."""
    found: dict[str, Any] = {}
    for name, value in known.items():
        if value is None:
            found[name] = None
            continue
        width = (count,) if name == "gram" else tuple(value.shape[1:])
        out = value.new_zeros(count, *width)
        where = rows.to(value.device)
        if name == "gram":
            out[where.unsqueeze(1), where] = value
        else:
            out[where] = value
        found[name] = out
    return found


def check_rescore(share: Any, policy: Policy, reuse_forward: bool) -> LastScores | None:
    """What `rescore` asks for; ValueError where that cannot be."""
    if share is None:
        return None
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise ValueError(f"rescore: got {share!r}, expected a number between 0 and 1, or None")
    if not policy.needs:
        raise ValueError(
            f"rescore: got {share} and the policy {policy.name!r}, which scores nothing; {OFF}"
        )
    if not getattr(policy, "gives_scores", True):
        raise ValueError(GIVES_NONE.format(share, policy.name))
    if reuse_forward:
        raise ValueError(
            f"rescore: got {share} with reuse_forward, which keeps a forward of all candidates; "
            "expected one of them"
        )
    return LastScores(share)


def items_of(item: Tensor | None) -> list[int]:
    """The numbers of the candidates; ValueError where the batch has none."""
    if item is None:
        raise ValueError(
            "rescore: got a batch without 'oasis_item' [N] (int64), or of several sequences in a "
            f"row, expected it to say which candidates return; {OFF}"
        )
    return item.tolist()
