"""Train on everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from oasis import Selection

from .base import Signals, eligible, register, unscored


class Full:
    """Rule: every sample that has a label token.

    Source: the "full data" row of the paper. Original: train on everything that arrives. Online
    form: on every candidate of every batch. Difference: none, but that a sample without a label
    token, which has nothing to train on, is not counted.

    Takes `ratio` and `seed` because all policies do; neither has an effect.
    """

    name = "full"
    needs: frozenset[str] = frozenset()
    ratio = 1.0

    def __init__(self, ratio: float = 1.0, seed: int = 0):
        pass

    def observe(self, signals: Signals) -> Selection:
        mask = torch.zeros(signals.num_samples, dtype=torch.bool)
        mask[eligible(signals)] = True
        return unscored(mask)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


register("full", Full)
