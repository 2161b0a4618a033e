"""What a token contributes, once the whole vocabulary has been seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Results:
    """Per token: its share of the metrics, and delta_t = tilt (lift E_t - pull e_{y_t})."""

    metrics: tuple[Tensor, ...]  # loss, entropy, el2n, correct
    base: Tensor  # log of the unit that lift and pull are taken in
    lift: Tensor  # exp(ridge - base), at most 1
    tilt: Tensor  # c_t x scale x exp(base - log-sum-exp)
    pull: Tensor  # the label column's share, at most 1 however confident the token


def unit_tilts(tilt: Tensor, owner: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Tilts over the largest of their sample, and those: their squares may underflow float32."""
    top = tilt.new_zeros(samples).scatter_reduce(0, owner, tilt.abs(), "amax")
    top = torch.where(top == 0, 1.0, top)
    return tilt / top[owner], top
