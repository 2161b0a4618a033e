"""Gram matrix of 16 gradients of 16 M numbers against one pass over the same memory.

Floors: bytes, 1 GiB once (float32); flops, 136 products a column, 4.6 GFLOP. The first binds.
"""

from __future__ import annotations

import torch

from bench.timing import interleaved, ratio, show, table
from oasis import grad_gram


def run(samples: int = 16, size: int = 1 << 24) -> None:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        grads = torch.randn(samples, size).to(dtype)
        wide = grads.view(torch.int16) if dtype == torch.bfloat16 else grads
        times = interleaved(
            {
                "sum": lambda w=wide: w.sum(),
                "gram": lambda g=grads: grad_gram(g),
                "matmul": lambda g=grads: g @ g.T,
            }
        )
        bandwidth = grads.numel() * grads.element_size() / min(times["gram"]) / 1e9
        rows.append(
            [
                str(dtype).removeprefix("torch."),
                *(show(min(times[k])) for k in ("gram", "sum", "matmul")),
                f"{ratio(times['gram'], times['sum']):.2f}",
                f"{ratio(times['matmul'], times['gram']):.2f}",
                f"{bandwidth:.1f} GB/s",
            ]
        )
    header = ["type", "grad_gram", "sum", "g @ g.T", "gram / sum", "matmul / gram", "read at"]
    table(f"Gram of {samples} gradients of {size:,} numbers", header, rows)
