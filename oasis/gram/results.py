"""What a token contributes, once the whole vocabulary has been seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Results:
    """Per token: its share of the metrics, and what its gradient is made of.

    delta_t = coefficient (entry_share E_t - label_share e_{y_t}).
    """

    metrics: tuple[Tensor, ...]  # loss, entropy, el2n, correct
    base: Tensor  # log of the unit that entry_share and label_share are taken in
    entry_share: Tensor  # exp(entry_peak - base), at most 1
    coefficient: Tensor  # c_t x scale x exp(base - log-sum-exp)
    label_share: Tensor  # the label column's share, at most 1 however confident the token


def unit_coefficients(coefficient: Tensor, owner: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Each over the largest of its sample, and those: their squares may underflow float32."""
    top = coefficient.new_zeros(samples).scatter_reduce(0, owner, coefficient.abs(), "amax")
    top = torch.where(top == 0, 1.0, top)
    return coefficient / top[owner], top
