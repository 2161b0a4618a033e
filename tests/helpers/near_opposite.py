"""Nearly opposite gradients: their sum is small but counts, down to where it counts as zero.

Shared by tests of the CPU, the reference and the emulated device. Answers by hand, in 40 digits.
"""

from __future__ import annotations

import mpmath
import torch

# With g = (1, 0) and -g + (0, d), ||S||^2 / (sum of norms)^2 is d^2 / 4 or so, and every entry of
# the Gram matrix, and d^2, is exact in float64. The last two lie on either side of 1e-12.
EXPONENTS = [6, 7, 9, 12, 15, 18, 19]
COUNTS = {k: 2.0 ** (-2 * k) / 4 > 1e-12 for k in EXPONENTS}
STRANGERS = [0, 4, 9]


def gram(k: int, strangers: int) -> torch.Tensor:
    """Of (1, 0), (-1, d), (0, 1/2), d = 2^-k, after `strangers` orthogonal to all, of norm 2."""
    d = 2.0**-k
    pair = torch.tensor([[1.0, 0.0], [-1.0, d], [0.0, 0.5]], dtype=torch.float64)
    whole = torch.zeros(strangers + 3, strangers + 3, dtype=torch.float64)
    whole[:strangers, :strangers] = 4 * torch.eye(strangers)
    whole[strangers:, strangers:] = pair @ pair.T
    return whole


def adjusted(k: int, strangers: int) -> tuple[list[int], float]:
    """The order of the picks, and the score of (0, 1/2), the last of them, when picked.

    Subsets of the strangers differ by their number t alone: their sum has squared norm 4 t and
    their scores sum to 4 t.
    """
    with mpmath.workdps(40):
        d = mpmath.mpf(2) ** -k
        one, other = (mpmath.mpf(1), mpmath.mpf(0)), (mpmath.mpf(-1), d)
        total = mpmath.mpf("0.25")
        for members in ((one,), (other,), (one, other)):
            x, y = (sum(g[axis] for g in members) for axis in (0, 1))
            scores = sum(g[0] ** 2 + g[1] ** 2 for g in members)
            for t in range(strangers + 1):
                norm, size = mpmath.sqrt(x**2 + y**2 + 4 * t), len(members) + t
                if len(members) == 2 and t == 0 and not COUNTS[k]:
                    continue
                term = (y / norm) * (scores + 4 * t) / size
                total += (-1) ** size * mpmath.binomial(strangers, t) * term
        order = [*range(strangers), strangers + 1, strangers, strangers + 2]
        return order, float(total)


def small_third(k: int) -> torch.Tensor:
    """Of (1, 0), (-1, d), (0, d / 2): the second leaves more of the first than the third has."""
    d = 2.0**-k
    grads = torch.tensor([[1.0, 0.0], [-1.0, d], [0.0, d / 2]], dtype=torch.float64)
    return grads @ grads.T
