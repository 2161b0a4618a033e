"""Why candidates were or were not picked: what they share with one that was, how long they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oasis import Selection
from oasis.policies import Policy, Signals


@dataclass(frozen=True)
class Redundant:
    """A candidate that would have been picked but for what it shares with picks of its batch.

    `pick`: the row of the pick whose gradient is most like its own, at `cosine`. `shared`: the
    share of its informativeness that was taken off.
    """

    pick: int
    cosine: float
    shared: float


def redundant(selection: Selection, signals: Signals) -> list[Redundant | None] | None:
    """Of each row: why it is redundant; None where it is not, or was picked.

    A row is redundant where its informativeness, before what it shares with rows already picked was
    taken off, is at least the lowest score picked. None for a policy that scores no redundancy.
    """
    score, adjusted = selection.informativeness, selection.adjusted
    if score is None or adjusted is None or signals.gram is None:
        return None
    score, adjusted = score.cpu().double(), adjusted.cpu().double()
    mask = selection.mask.cpu()
    found: list[Redundant | None] = [None] * len(mask)
    picks = mask.nonzero().flatten()
    if not len(picks):
        return found
    out = ~mask & ~selection.skipped.cpu() & (adjusted < score)
    rows = (out & (score >= adjusted[picks].min())).nonzero().flatten()
    gram = signals.gram.cpu().double()
    scale = gram.diagonal().clamp(min=torch.finfo(torch.float64).tiny).sqrt()
    for row in rows.tolist():
        cosine = gram[row, picks] / (scale[row] * scale[picks])
        closest = int(cosine.abs().argmax())
        found[row] = Redundant(
            pick=int(picks[closest]),
            cosine=float(cosine[closest]),
            shared=float(1 - adjusted[row] / score[row]),
        )
    return found


FEW = 32  # selected samples, of which nothing is said
SHORT = 0.7  # of the mean length of the candidates


def short_answers(
    policy: Policy, selected: int, selected_tokens: int, candidates: int, candidate_tokens: int
) -> str | None:
    """What to do where a policy that goes by the gradient's norm selects samples with much fewer
    label tokens than the candidates have.
    """
    if getattr(policy, "metric", None) != "fisher" or selected < FEW:
        return None
    ours, all_of_them = selected_tokens / selected, candidate_tokens / candidates
    if ours >= SHORT * all_of_them:
        return None
    return (
        f"the selected samples have {ours:.1f} label tokens each, the candidates "
        f"{all_of_them:.1f}: a gradient's norm prefers short answers, metric='token_fisher' does "
        "not"
    )
