"""What `method="auto"` takes on a GPU, and the time that the cost model predicts for every regime;
and of the products of E what tiles take, and what strips of cuBLAS would.

Nothing is run: the rates are those of oasis/gram/rates.py for an H100.
"""

from __future__ import annotations

import torch
from oasis.kernels.triton.blocks import TABLE

from bench.timing import show, table
from oasis.gram import cost
from oasis.gram.algebra import LOW
from oasis.gram.rates import CUDA, HALF, TWICE, Rates
from oasis.gram.tiles import choose

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
    rates = CUDA[90]
    keys = {"samples": n, "tokens": t, "width": d, "vocabulary": v, "dtype": dtype, "rates": rates}
    methods = [m for m in cost.METHODS if m != "float8" or dtype != torch.float64]
    times = [show(cost.work(m, **keys).seconds(rates)) for m in methods]
    times += ["-"] * (len(cost.METHODS) - len(methods))
    picked = cost.pick(t, d, v, n, dtype=dtype, device=torch.device("cuda"))
    return [str(n), f"{t:,}", str(d), str(v), str(dtype)[6:], *times, picked]


def strips(rates: Rates, tokens: int, columns: int) -> tuple[float, int]:
    """Seconds of E E^T's lower half by `torch.mm(..., out_dtype=float32)`, and the rows of a strip.

    Tiles of 128 x 256 in whole waves, none cut along the vocabulary; torch 2.8 has no `addmm` of
    halves onto float32, so a strip is written, and added to the sums while these shrink: 16 bytes a
    number. L2 is left out: cuBLAS shares tiles among the programs of a cluster.
    """

    def seconds(rows: int) -> float:
        total = 0.0
        for begin in range(0, tokens, rows):
            end = min(begin + rows, tokens)
            tiles = -(-(end - begin) // 128) * -(-end // 256)
            wave = 2 * 128 * 256 * columns * rates.processors / rates.half
            total += -(-tiles // rates.processors) * wave
            total += 16 * (end - begin) * end / rates.traffic
        return total

    return min((seconds(rows), rows) for rows in (512, 1024, 2048, 4096, 8192))


def product(tokens: int, dtype: torch.dtype, vocabulary: int = 128_256) -> list[str]:
    rates = CUDA[90]
    columns = TABLE[90].vocabulary_block(tokens)
    blocks = vocabulary / columns
    tiling = choose(rates, HALF if dtype in LOW else TWICE, tokens, columns)
    once, rows = strips(rates, tokens, columns)
    once *= 1 if dtype in LOW else 3
    ours = f"{tiling.tile.rows} x {tiling.tile.columns}", str(tiling.parts)
    times = show(blocks * tiling.seconds), show(blocks * once)
    return [f"{tokens:,}", str(dtype)[6:], str(columns), *ours, times[0], str(rows), times[1]]


def run() -> None:
    rows = [row(shape, dtype) for shape in SHAPES for dtype in TYPES]
    header = ["N", "T", "D", "V", "type", *(f"{m}, predicted" for m in cost.METHODS), "auto"]
    table("head_gram's choice on a GPU", header, rows)
    lengths = 64, 512, 1600, 3200, 8192, 16384, 32768
    rows = [product(t, dtype) for dtype in TYPES[:2] for t in lengths]
    header = ["T", "type", "columns a block", "tile", "parts", "tiles", "rows a strip", "strips"]
    table("products of E at V = 128256", header, rows)
