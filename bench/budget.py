"""How the budget is met, and what that leaves of adaptivity: presets on made-up streams of scores.

Every batch has 16 candidates. With SIREN (each preset's own rule) their gradients have 64
dimensions and lie around six directions a batch; the Gram matrix is the real one of these.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bench.timing import table
from oasis import Selector, operators

BATCHES, EARLY, SIZE = 2000, 200, 16
RATIOS = (0.0625, 0.125, 0.25, 0.5)
PRESETS = ("calibrated", "paper", "released")
STREAMS = ("iid", "drifting", "shifting", "heavy-tailed", "periodic", "constant")
PERIODS = (1, 2, 4, 8, 16)


def scores(stream: str, batches: int, seed: int) -> Tensor:
    """Informativeness [batches, 16] float64 of a stream of `STREAMS`."""
    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(batches, SIZE, generator=g, dtype=torch.float64)
    t = torch.arange(batches, dtype=torch.float64).unsqueeze(1)
    plain = (0.5 * normal).exp()
    if stream == "heavy-tailed":
        return (2 * normal).exp()
    if stream == "constant":
        return torch.ones_like(normal)
    level = {
        "iid": torch.ones_like(t),
        "drifting": (-5 * t / batches).exp(),
        # Up and down, also 5 batches before the first reading and 10 before the second.
        "shifting": torch.where(((t + 164) // 359) % 2 == 1, 100.0, 1.0),
        "periodic": 1 + 0.9 * (2 * math.pi * t / 50).sin(),
    }
    return plain * level[stream]


def alternating(period: int, batches: int, seed: int, contrast: float = 3.0) -> Tensor:
    """[batches, 16]: `period` dull batches, then as many that are `contrast` x as informative."""
    return scores("iid", batches, seed) * torch.where(informative(period, batches), contrast, 1.0)


def informative(period: int, batches: int) -> Tensor:
    """[batches, 1] bool."""
    return ((torch.arange(batches) // period) % 2 == 1).unsqueeze(1)


def grams(informativeness: Tensor, seed: int) -> Tensor:
    """Gram matrices [batches, 16, 16] of gradients with these squared norms, many of them alike."""
    g = torch.Generator().manual_seed(seed)
    batches, n = informativeness.shape
    centres = torch.randn(batches, 6, 64, generator=g, dtype=torch.float64)
    own = torch.randint(0, 6, (batches, n), generator=g)
    noise = torch.randn(batches, n, 64, generator=g, dtype=torch.float64)
    grads = centres.gather(1, own.unsqueeze(2).expand(-1, -1, 64)) + 0.6 * noise
    grads *= (informativeness.sqrt() / grads.norm(dim=2)).unsqueeze(2)
    return grads @ grads.mT


def follow(selector: Selector, raw: Tensor) -> tuple[Tensor, Tensor]:
    """(selected per batch [batches] int64, z [batches, n]) of a selector fed with scores that are
    taken as they are.
    """
    options = selector.preset.options(selector.ratio)
    state = selector.statistics, selector.counters
    valid = torch.ones(raw.shape[1], dtype=torch.bool)
    steps = [operators.oris_(i, i, valid, *state, options) for i in raw]
    return torch.stack([s[2].sum() for s in steps]), torch.stack([s[0] for s in steps])


def follow_grams(selector: Selector, kernels: Tensor) -> tuple[Tensor, Tensor]:
    """The same of a selector fed with Gram matrices, by its own redundancy rule."""
    steps = [selector.select(gram=k) for k in kernels]
    return torch.stack([s.mask.sum() for s in steps]), torch.stack([s.relative for s in steps])


def deviation(selected: Tensor, ratio: float, batches: int) -> float:
    """Relative deviation of the realised ratio after `batches`, in percent."""
    return 100 * (float(selected[:batches].sum()) / (ratio * SIZE * batches) - 1)


def factor(amount: Tensor, period: int) -> float:
    """Samples of informative batches per sample of dull ones."""
    high = informative(period, len(amount)).squeeze(1)
    return float(amount[high].sum() / amount[~high].sum().clamp(min=1))


def fixed(relative: Tensor, ratio: float) -> Tensor:
    """Expected samples per batch under the one threshold that meets the ratio in hindsight: what
    the scores offer to a loop that had no budget to watch."""
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        probability = torch.sigmoid(relative - middle)
        low, high = (middle, high) if probability.mean() > ratio else (low, middle)
    return probability.sum(1)


def landing() -> None:
    header = ["stream", "ratio", *(f"{p}{s}" for p in PRESETS for s in ("", " + SIREN"))]
    rows = []
    for seed, stream in enumerate(STREAMS):
        raw = scores(stream, BATCHES, seed)
        kernels = grams(raw, seed)
        for ratio in RATIOS:
            row = [stream, f"{ratio:.2%}"]
            for preset in PRESETS:
                plain, siren = (Selector(ratio, preset=preset, seed=seed) for _ in range(2))
                for selected, _ in (follow(plain, raw), follow_grams(siren, kernels)):
                    early, late = (deviation(selected, ratio, n) for n in (EARLY, BATCHES))
                    row.append(f"{early:+.1f} / {late:+.2f}")
            rows.append(row)
    table(
        f"Realised ratio less target, in % of it, after {EARLY} / {BATCHES} batches", header, rows
    )


def adaptivity() -> None:
    rows = []
    for period in PERIODS:
        raw = alternating(period, BATCHES, period)
        kernels = grams(raw, period)
        for ratio in RATIOS:
            row = [period, f"{ratio:.2%}"]
            for selected, relative in (
                follow(Selector(ratio, seed=1), raw),
                follow_grams(Selector(ratio, seed=1), kernels),
                follow(Selector(ratio, seed=1, beta=0.1), raw),
            ):
                offered = factor(fixed(relative, ratio), period)
                row.append(f"{factor(selected, period):.1f} of {offered:.1f}")
            for preset in PRESETS[1:]:
                selected, _ = follow(Selector(ratio, preset=preset, seed=1), raw)
                late = deviation(selected, ratio, BATCHES)
                row.append(f"{factor(selected, period):.1f} ({late:+.0f} %)")
            rows.append(row)
    header = ["period", "ratio", "calibrated", "calibrated + SIREN", "calibrated, beta 0.1"]
    header += [f"{preset} (ratio off by)" for preset in PRESETS[1:]]
    title = "Samples of informative (3 x) batches per sample of dull ones, of those that a fixed "
    table(title + "threshold with the same ratio would give", header, rows)


def run() -> None:
    landing()
    adaptivity()
