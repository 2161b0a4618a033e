"""The threshold that meets a ratio where z is normal (docs/method.md 4)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from oasis.checks import check_number


def check_ratio(ratio: float) -> float:
    return check_number("ratio", ratio, 5e-324, 1, "a number in (0, 1]")


def check_temperature(temperature: float) -> float:
    return check_number("temperature", temperature, 0.01, 100, "a number in [0.01, 100]")


@lru_cache(maxsize=None, typed=True)  # typed: True is refused, though it equals 1
def threshold(ratio: float, temperature: float = 1.0) -> float:
    """I_T such that E[sigmoid((Z - I_T) / temperature)] = ratio for Z ~ N(0, 1) (docs/method.md 4).

    Args:
        ratio: expected share selected, in (0, 1]; 1 gives -inf (everything is selected).
        temperature: width of the sigmoid in deviations, in [0.01, 100].

    >>> round(threshold(0.25), 4)
    1.3149
    """
    ratio = check_ratio(ratio)
    temperature = check_temperature(temperature)
    if ratio == 1:
        return -math.inf
    # The poles of the sigmoid lie at distance pi temperature from the real line: the trapezoid
    # rule converges like exp(-2 pi^2 temperature / h), and this h is exact to rounding.
    step = 0.1 * min(1.0, temperature)
    last = round(13 / step)
    nodes = step * torch.arange(-last, last + 1, dtype=torch.float64)
    weights = step * torch.exp(-nodes * nodes / 2) / math.sqrt(2 * math.pi)
    low, high = -100.0 * max(1.0, temperature), 100.0 * max(1.0, temperature)
    while high - low > 1e-14 * max(1.0, abs(low)):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        share = float(weights @ torch.sigmoid((nodes - middle) / temperature))
        low, high = (middle, high) if share > ratio else (low, middle)
    return (low + high) / 2
