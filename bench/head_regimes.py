"""The regimes of head_gram over a grid: does the cost model (oasis/gram/cost.py) pick well?

Prints every time, what "auto" takes and how far that is from the best (of the exact regimes, and of
all three from N = 1024 on, as in `pick`), and fits the model's two constants to the table.
"""

from __future__ import annotations

import time

import torch

from bench.timing import interleaved, show, table
from oasis import head_gram
from oasis.gram import cost
from oasis.gram.rates import CPU

ALLOWED = 1.15
GRID = [
    *((t, 64, 4000, n) for t in (256, 512, 1024, 2048) for n in (4, 32)),
    *((t, 256, 4000, n) for t in (256, 1024, 2048, 4096) for n in (4, 32, 128)),
    *((t, 64, 20000, 16) for t in (256, 1024, 2048)),
    *((t, 1024, 2000, n) for t in (512, 2048, 4096) for n in (8, 64)),
    *((t, d, 4000, n) for d in (64, 512) for t, n in ((2048, 1024), (4096, 2048))),
]


def inputs(tokens, width, vocabulary, samples):
    torch.manual_seed(0)
    weight = torch.randn(vocabulary, width) / width**0.5
    labels = torch.randint(vocabulary, (tokens,))
    return torch.randn(tokens, width), weight, labels, torch.arange(tokens) * samples // tokens


def times(shape, rounds: int = 3) -> dict[str, float]:
    """CPU seconds per regime; one hopeless by the model (4 x the best estimate) is not run."""
    x = inputs(*shape)
    keys = dict(zip(("tokens", "width", "vocabulary", "samples"), shape, strict=True))
    estimate = {m: cost.work(m, **keys).seconds(CPU) for m in cost.AUTOMATIC}
    limit = 4 * min(estimate.values())
    functions = {
        m: lambda m=m: head_gram(*x, num_samples=shape[3], method=m)
        for m in cost.AUTOMATIC
        if estimate[m] <= limit
    }
    return {m: min(t) for m, t in interleaved(functions, rounds, clock=time.process_time).items()}


def fit(measured) -> tuple[float, float]:
    """(flops, bytes) per second: least squares of the relative error."""
    rows = []
    for shape, seconds in measured:
        keys = dict(zip(("tokens", "width", "vocabulary", "samples"), shape, strict=True))
        for m, s in seconds.items():
            work = cost.work(m, **keys)
            rows.append([sum(work.flops.values()) / s, work.traffic / s])
    a = torch.tensor(rows, dtype=torch.float64)
    size = a.abs().amax(0)
    x = torch.linalg.lstsq(a / size, torch.ones(len(a), 1, dtype=torch.float64)).solution[:, 0]
    return tuple((size / x).tolist())


def run() -> None:
    measured, rows, worst = [], [], 1.0
    for shape in GRID:
        seconds = times(shape)
        measured.append((shape, seconds))
        picked = cost.pick(*shape)
        allowed = [m for m in seconds if m != "sketch" or shape[3] >= cost.SKETCH_SAMPLES]
        best = min(allowed, key=seconds.get)
        over = seconds[picked] / seconds[best]
        worst = max(worst, over)
        cells = [show(seconds[m]) if m in seconds else "-" for m in cost.AUTOMATIC]
        rows.append([*shape, *cells, picked, f"{over:.2f}"])
    table("head_gram regimes", ["T", "D", "V", "N", *cost.AUTOMATIC, "auto", "over best"], rows)
    flops, traffic = fit(measured)
    print(f"\nworst pick {worst:.2f} x the best (allowed {ALLOWED})")
    print(f"constants that fit this table: {flops:.3g} flops/s, {traffic:.3g} bytes/s")
    if worst > ALLOWED:
        raise SystemExit("the cost model picked badly; fit its constants to this machine")
