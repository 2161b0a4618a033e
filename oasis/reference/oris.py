"""ORIS: running statistics, z, the draws, the budget loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .generator import uniform
from .gram import _float64


@dataclass(frozen=True)
class Statistics:
    """Running statistics of the stream, after ``batches`` batches of ``candidates`` samples in all.

    ``mean`` of batch means, ``variance`` of batch means, ``within`` the variance of samples.
    """

    mean: float = 0.0
    variance: float = 0.0
    within: float = 0.0
    batches: int = 0
    candidates: int = 0


def _own_variance(own: Tensor, recursion: str) -> float:
    squares = float(((own - own.mean()) ** 2).sum())
    return squares / max(len(own) - (recursion == "released"), 1)


def relative(
    informativeness: Tensor,
    adjusted: Tensor,
    statistics: Statistics,
    *,
    scale: str = "sample",
    warmup: int = 1,
    recursion: str = "equations",
    valid: Tensor | None = None,
) -> Tensor:
    """``z_i = (A_i - mean) / s`` from the statistics *before* this batch; 0 where not valid.

    ``s`` is sqrt(N v) ("sample"), sqrt(v) ("batch"), v ("raw") or sqrt(within) ("within"). With
    fewer than ``warmup`` candidates seen, or where s is 0 (two equal batch means) or so small that
    digits or z are lost, the batch's own mean and standard deviation ("equations": of the
    population, "released": the unbiased one). Below 1e-6 |mean| equal scores would be told apart by
    rounding: then s is the root mean square of A - mean, or 1e-6 |mean| where that is smaller too
    ("raw" is no deviation and left alone).
    """
    raw, scores = _float64(informativeness), _float64(adjusted)
    own = torch.ones(len(raw), dtype=torch.bool) if valid is None else valid
    n = int(own.sum())
    z = torch.zeros_like(scores)
    if n == 0:
        return z
    mean = statistics.mean
    s = {
        "sample": math.sqrt(n * statistics.variance),
        "batch": math.sqrt(statistics.variance),
        "raw": statistics.variance,
        "within": math.sqrt(statistics.within),
    }[scale]
    lost = (statistics.within if scale == "within" else statistics.variance) < 2.0**-1022
    lost = lost or float(scores[own].abs().max() + abs(mean)) / s == math.inf
    if statistics.batches == 0 or statistics.candidates < warmup or lost:
        mean = float(raw[own].mean())
        s = math.sqrt(_own_variance(raw[own], recursion))
    smallest = 1e-6 * abs(mean)
    if scale != "raw" and s < smallest:
        s = max(smallest, float(((scores[own] - mean) ** 2).mean().sqrt()))
    z[own] = (scores[own] - mean) / s if s > 0 else 0.0
    return z


def update(
    informativeness: Tensor,
    statistics: Statistics,
    *,
    beta: float = 0.9,
    warmup: int = 1,
    recursion: str = "equations",
    valid: Tensor | None = None,
) -> Statistics:
    """The statistics after this batch; beta weighs the newest.

    "equations": the first batch sets the mean. "released": nothing is set before ``warmup``
    candidates are there; the batch that brings them sets mean and variance.
    """
    raw = _float64(informativeness)
    own = raw if valid is None else raw[valid]
    if len(own) == 0:
        return statistics
    mean = float(own.mean())
    seen = statistics.candidates + len(own)
    after = replace(statistics, batches=statistics.batches + 1, candidates=seen)
    spread = _own_variance(own, recursion)
    if recursion == "released":
        if seen < warmup:
            return after
        if statistics.candidates < warmup or statistics.batches == 0:
            return replace(after, mean=mean, variance=spread, within=spread)
    elif statistics.batches == 0:
        return replace(after, mean=mean, variance=0.0, within=spread)
    around = float(((own - statistics.mean) ** 2).mean())
    updated = beta * mean + (1 - beta) * statistics.mean
    centre = updated if recursion == "released" else statistics.mean
    return replace(
        after,
        mean=updated,
        variance=beta * (mean - centre) ** 2 + (1 - beta) * statistics.variance,
        within=beta * around + (1 - beta) * statistics.within,
    )


def draw(
    probability: Tensor,
    relative: Tensor,
    valid: Tensor,
    kind: str,
    seed: int,
    offset: int,
    due: int = 0,
) -> Tensor:
    """Which samples are selected ``[N]`` bool: ``P > r``, r from the Philox stream at ``offset``.

    "bernoulli": one r per position; "shared": one per batch; "systematic": one offset, a sample is
    taken where the cumulated P of the valid samples passes a whole number; "top": as many, those
    with the largest z (ties: lowest index); "even": ``due`` of them, floor(ratio x candidates) less
    what has been selected before.
    """
    mask = torch.zeros(len(probability), dtype=torch.bool)
    r = uniform(seed, offset, len(probability))
    if kind in ("top", "even"):
        own = [i for i in range(len(probability)) if valid[i]]
        own.sort(key=lambda i: (-float(relative[i]), i))
        expected = math.fsum(float(p) for p in probability[valid])
        count = math.floor(float(r[0]) + expected) if kind == "top" else max(0, due)
        mask[own[:count]] = True
        return mask
    total = float(r[0])
    for i in range(len(probability)):
        if not valid[i]:
            continue
        if kind == "systematic":
            mask[i] = math.floor(total + float(probability[i])) > math.floor(total)
            total += float(probability[i])
        else:
            mask[i] = bool(probability[i] > (r[i] if kind == "bernoulli" else r[0]))
    return mask


def bounds(
    ratio: float, slack: float, selected: int, candidates: int, batches: int
) -> tuple[int, int]:
    """(least, most) samples that may have been selected once ``batches`` batches brought
    ``candidates``: ``selected`` is how many were before the last of them.

    The cap is ratio x candidates, the floor lies `width` below; the past may have crossed either.
    """
    due = ratio * candidates
    most = max(math.floor(due), selected)
    least = math.ceil(due - width(ratio, slack, candidates, batches))
    return min(max(least, selected), most), most


def width(ratio: float, slack: float, candidates: int, batches: int) -> float:
    """Samples between cap and floor: ``slack`` of the budget, at first that of a longer stream
    (90 sqrt(t) of t batches, at most 1,250), and never less than two samples."""
    typical = ratio * max(candidates / batches, 16)
    t = ratio * candidates / typical
    return max(2.0, slack * typical * max(t, min(90 * math.sqrt(t), 1250)))


def settle(
    mask: Tensor,
    relative: Tensor,
    valid: Tensor,
    keep: int,
    kind: str = "bernoulli",
    seed: int = 0,
    offset: int = 0,
    temperature: float = 1.0,
) -> Tensor:
    """``mask`` with ``keep`` samples: drops or adds by the threshold at which each is just drawn.

    sigmoid((z - I) / t) = r at I = z - t logit(r); with a common r that is the order of z.
    """
    at = [float(z) for z in relative]
    if kind == "bernoulli":
        r = [float(x) for x in uniform(seed, offset, len(relative))]
        at = [
            z - temperature * math.log(x / (1 - x)) if x > 0 else math.inf
            for z, x in zip(at, r, strict=True)
        ]
    own = [i for i in range(len(relative)) if valid[i]]
    order = sorted(own, key=lambda i: (-at[i], i))
    drawn = [i for i in order if mask[i]]
    chosen = drawn[:keep]
    chosen += [i for i in order if not mask[i]][: keep - len(chosen)]
    out = torch.zeros_like(mask)
    out[chosen] = True
    return out


def steer(
    threshold: float,
    *,
    ratio: float,
    gain: float,
    slack: float,
    expected: float,
    kept: int,
    count: int,
    selected: int,
    candidates: int,
    batches: int,
) -> float:
    """The next batch's threshold. This batch had ``count`` candidates, its probabilities sum to
    ``expected``, ``kept`` stood; the last three are totals that include it."""
    room = width(ratio, slack, candidates, batches)
    unit = ratio * max(candidates / batches, 16)
    variance = unit * (1 - ratio)  # of a batch's draws
    firm = min(6 * variance / room**2, 0.3)
    slow = gain * unit / room
    left = ratio * candidates - selected
    step = firm * (kept - ratio * count)
    step += slow * (expected - ratio * count)
    step += (firm + slow) ** 2 / 4 * (0.45 * room - left)
    return threshold + step / variance


def threshold(ratio: float, temperature: float = 1.0) -> float:
    """``I_T`` with ``E[sigmoid((Z - I_T) / temperature)] = ratio``, Z standard normal; -inf at
    ratio 1.

    Bisection on a trapezoid sum: the integrand is analytic in the strip \\|Im z\\| < pi x
    temperature, so a step of temperature / 16 already leaves an error below float64's rounding.
    """
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio: got {ratio!r}, expected a number in (0, 1]")
    if ratio == 1.0:
        return -math.inf
    if ratio > 0.5:
        return -threshold(1.0 - ratio, temperature)
    step = min(1.0, temperature) / 16
    last = math.ceil(14 / step)
    nodes = [step * j for j in range(-last, last + 1)]

    def expectation(t: float) -> float:
        return math.fsum(
            step * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            / (1 + math.exp(min((t - z) / temperature, 700.0)))
            for z in nodes
        )  # fmt: skip

    low, high = 0.0, 690.0 * max(1.0, temperature)
    if expectation(low) <= ratio:
        return low
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if expectation(middle) > ratio else (low, middle)
