"""Gram matrix of 16 gradients of 16 M numbers against one pass over the same memory.

Floors: bytes, 1 GiB once (float32); flops, 136 products a column, 4.6 GFLOP. The first binds.

The pass is `sum()` of float32 numbers, of which bfloat16 gradients are read as half as many: it is
bytes that are compared. (torch's sum of bfloat16 or int16 widens every number and reads no faster.)
"""

from __future__ import annotations

import statistics

import torch

from bench.timing import interleaved, median, ratio, table
from oasis import grad_gram


def run(samples: int = 16, size: int = 1 << 24) -> None:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        grads = torch.randn(samples, size).to(dtype)
        memory = grads.view(torch.float32)
        times = interleaved(
            {
                "sum": lambda m=memory: m.sum(),
                "gram": lambda g=grads: grad_gram(g),
                "matmul": lambda g=grads: g @ g.T,
            }
        )
        bandwidth = grads.nbytes / statistics.median(times["gram"]) / 1e9
        rows.append(
            [
                str(dtype).removeprefix("torch."),
                *(median(times[k]) for k in ("gram", "sum", "matmul")),
                f"{ratio(times['gram'], times['sum']):.2f}",
                f"{ratio(times['matmul'], times['gram']):.2f}",
                f"{bandwidth:.1f} GB/s",
            ]
        )
    header = [
        "type",
        "grad_gram",
        "float32 sum",
        "g @ g.T",
        "gram / sum",
        "matmul / gram",
        "read at",
    ]
    table(f"Gram of {samples} gradients of {size:,} numbers", header, rows)
