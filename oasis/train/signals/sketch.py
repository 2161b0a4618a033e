"""A count sketch of very long vectors that come piece by piece."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SIZE = 8192
_WORD = (1 << 31) - 1  # products of two such words fit into int64


def _hash(x: Tensor, seed: int) -> Tensor:
    """31 well mixed bits of each number of `x` (int64, >= 0): multiply and shift, thrice."""
    x = (x + 0x1B873593 * (2 * seed + 1)) & _WORD
    for factor in (0x2C1B3C6D, 0x297A2D39, 0x3C6EF372 | 1):
        x = ((x ^ (x >> 15)) * factor) & _WORD
    return x ^ (x >> 15)


class CountSketch:
    """A seeded sparse sign projection of vectors of any length to `size` numbers.

    Number p of the vector goes, with a random sign, to one bucket: (p + o_b) mod size, where o_b is
    a random offset for each run b of `size` successive numbers. Two numbers meet in a bucket with
    probability 1 / size (in the same run: never), so inner products are kept in expectation, with a
    variance below 2 |x|^2 |y|^2 / size (Charikar 2002, Weinberger 2009). Signs and offsets are
    hashes of the position: nothing as long as the vector is stored, on any device.
    """

    def __init__(self, size: int = SIZE, seed: int = 0) -> None:
        self.size = size
        self.seed = seed

    def __call__(self, values: Tensor, start: int = 0) -> Tensor:
        """Sketch [N, size] of `values` [N, P], numbers start to start + P of vectors that are zero
        elsewhere. Sketches of parts add up. Summed in the dtype of `values`.
        """
        device, end = values.device, start + values.shape[1]
        positions = torch.arange(start, end, device=device)
        signs = 1 - 2 * (_hash(positions, self.seed) >> 30)
        first, last = start // self.size, -(-end // self.size)
        padding = (start - first * self.size, last * self.size - end)
        runs = F.pad(values * signs.to(values.dtype), padding).view(len(values), -1, self.size)
        offsets = _hash(torch.arange(first, last, device=device), self.seed + 1) % self.size
        source = (torch.arange(self.size, device=device) - offsets[:, None]) % self.size
        return runs.gather(2, source.expand_as(runs)).sum(dim=1)
