"""What `method="auto"` takes on a GPU, and the time that the cost model predicts for every regime.

Nothing is run: the rates are those of oasis/gram/cost.py for an H100.
"""

from __future__ import annotations

import torch

from bench.timing import show, table
from oasis.gram import cost

TYPES = (torch.bfloat16, torch.float32, torch.float64)
SHAPES = [  # N, T, D, V
    *((16, t, 896, 151936) for t in (1600, 4096, 16384)),
    *((16, t, 1536, 151936) for t in (1600, 8192, 32768)),
    *((16, t, 2048, 128256) for t in (1600, 8192, 32768)),
    *((16, t, 4096, 128256) for t in (3200, 16384, 65536)),
    *((1024, t, 4096, 128256) for t in (100_000, 400_000)),
    (4096, 100_000, 4096, 128000),
]


def row(shape: tuple[int, int, int, int], dtype: torch.dtype) -> list[str]:
    n, t, d, v = shape
    rates = cost.rates_of(torch.device("cuda"))
    keys = {"samples": n, "tokens": t, "width": d, "vocabulary": v, "dtype": dtype, "gpu": True}
    times = [show(cost.work(m, **keys).seconds(rates)) for m in cost.METHODS]
    picked = cost.pick(t, d, v, n, dtype=dtype, device=torch.device("cuda"))
    return [str(n), f"{t:,}", str(d), str(v), str(dtype)[6:], *times, picked]


def run() -> None:
    rows = [row(shape, dtype) for shape in SHAPES for dtype in TYPES]
    header = ["N", "T", "D", "V", "type", *(f"{m}, predicted" for m in cost.METHODS), "auto"]
    table("head_gram's choice on a GPU", header, rows)
