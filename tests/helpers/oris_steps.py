"""Steps of ORIS with every option given: the operator's options, and the operator on a stream."""

from __future__ import annotations

import torch

import oasis
from oasis import PRESETS
from oasis.names import OPTIONS, pack

# Options of one ORIS step: the paper's, and others of which each differs from what a forgotten one
# would be.
ORIS_PLAIN = {name: getattr(PRESETS["paper"], name, 0.25) for name in OPTIONS}  # 0.25: the ratio
ORIS_CHOICES = ORIS_PLAIN | {"scale": "within", "gain": 0.1, "slack": 0.01, "temperature": 0.5}


def fresh_state(seed=0):
    """Statistics and counters of a selector that has seen nothing."""
    selector = oasis.Selector(0.25, preset="paper", seed=seed)
    return selector.statistics, selector.counters


def oris_options(**changed) -> list[float]:
    """They, or others in their place, as the operators take them."""
    return pack(**ORIS_CHOICES | changed)


class Stream:
    """The operator with its state, every option given by name."""

    def __init__(self, seed=0, threshold=0.5, ratio=0.25):
        # The layout belongs to Selector: read it off one.
        selector = oasis.Selector(ratio, preset="paper", seed=seed)
        self.statistics, self.counters = selector.statistics, selector.counters
        self.selector, self.ratio = selector, ratio
        self.statistics[-1] = threshold
        assert selector.threshold == threshold

    def step(self, informativeness, adjusted=None, valid=None, **options):
        options = ORIS_PLAIN | {"ratio": self.ratio} | options
        adjusted = informativeness if adjusted is None else adjusted
        if valid is None:
            valid = torch.ones(len(informativeness), dtype=torch.bool)
        return torch.ops.oasis.oris_(
            informativeness,
            adjusted,
            valid,
            self.statistics,
            self.counters,
            pack(**options),
        )
