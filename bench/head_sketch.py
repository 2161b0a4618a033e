"""What the sketches beside the Gram matrix cost: head_gram with and without, interleaved."""

from __future__ import annotations

import torch

from bench.head_gram import inputs
from bench.timing import interleaved, median, ratio, table
from oasis import head_gram


def run(width: int = 576, vocabulary: int = 49152) -> None:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for tokens in (256, 512):
            x = inputs(16, tokens // 16, width, vocabulary, dtype)

            def scored(sketch: int, x=x):
                return head_gram(*x[:4], num_samples=x[4], method="ghost", sketch=sketch)

            functions = {
                f"{size}": lambda scored=scored, size=size: scored(size) for size in (0, 512)
            }
            times = interleaved(functions, 9)
            over = f"{ratio(times['512'], times['0']) - 1:+.1%}"
            name = str(dtype).removeprefix("torch.")
            rows.append([name, tokens, median(times["0"]), median(times["512"]), over])
    header = ["type", "T", "without", "with 512 numbers", "over"]
    table(f"head_gram and sketches, N = 16, D = {width}, V = {vocabulary}", header, rows)
