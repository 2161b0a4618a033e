"""The samples that a policy with several signals may choose."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Signals, candidates, required


def finite_rows(policy: str, signals: Signals, *names: str) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The samples that may be chosen, those skipped, and the named signals of the former.

    Returns:
        rows [n] int64: samples with a label token whose named signals are all finite;
        skipped [N] bool: those with a label token and a signal that is not;
        the signals [n, ...] of `rows` (CPU, float64), in the order of `names`.

    Raises:
        ValueError: a signal is missing, or is not one per sample.
    """
    values = [required(signals, name, policy) for name in names]
    # A sum of zeros is finite where, and only where, all of a sample's numbers are.
    finite = torch.zeros(signals.num_samples, dtype=torch.float64)
    for value in values:
        finite += (value.reshape(len(value), -1) * 0).sum(dim=1)
    rows, skipped = candidates(signals, finite)
    return rows, skipped, [value[rows] for value in values]
