"""Philox4x32-10: counter-based random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def philox(seed: Sequence[int], counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al. 2011): key of 2 and counter of 4 words of 32 bits."""
    k0, k1 = seed
    x0, x1, x2, x3 = counter
    word = 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (b >> 32) ^ x1 ^ k0, b & word, (a >> 32) ^ x3 ^ k1, a & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return x0, x1, x2, x3


def uniform(seed: int, offset: int, n: int) -> Tensor:
    """``n`` uniforms in [0, 1) with 53 bits, one Philox counter each, from ``offset`` on."""
    word = 0xFFFFFFFF
    key = (seed & word, (seed >> 32) & word)
    out = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        at = offset + i
        x0, x1, _, _ = philox(key, (at & word, (at >> 32) & word, 0, 0))
        out[i] = ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53
    return out
