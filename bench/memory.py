"""What remembering selected samples adds to a selection, beside scoring the batch.

Floor of m remembered sketches of S = 512 numbers and a batch of N: m (m / 2 + N) S multiplications
for the cosines, m^3 / 6 for the factor; 2 M at m = 64, 24 M at m = 256. Sketching given gradients
reads each number once. Making the sketches of `head_gram` is its own, and not in here.
"""

from __future__ import annotations

import torch

from bench.head_gram import inputs
from bench.timing import interleaved, median, ratio, table
from oasis import Selector, grad_gram, head_gram, operators
from oasis.names import COUNTERS
from oasis.selection.memory import SEED, WIDTH

REMEMBERED = (0, 64, 256)


def selections(gram: torch.Tensor, sketch: torch.Tensor) -> dict:
    """{name: a selection by a selector whose memory is full}."""
    functions = {}
    for m in REMEMBERED:
        selector = Selector(0.25, remember=m)
        selector.memory.normal_()
        for name, count in (("selected", m), ("candidates", 4 * m)):
            selector.counters[COUNTERS[name]] = count
        functions[f"remember={m}"] = lambda s=selector: s.select(gram=gram, sketch=sketch)
    return functions


def row(title: str, times: dict[str, list[float]]) -> list[list[str]]:
    added = [
        [a - b for a, b in zip(times[f"remember={m}"], times["remember=0"], strict=True)]
        for m in REMEMBERED
    ]
    return [
        [title, m, median(times["scoring"]), median(times[f"remember={m}"]), f"{share:+.2%}"]
        for m, seconds in zip(REMEMBERED, added, strict=True)
        for share in [ratio(seconds, times["scoring"])]
    ]


def run(width: int = 1024, vocabulary: int = 32000) -> None:
    rows = []
    for n, tokens in ((16, 32), (64, 8)):
        x = inputs(n, tokens, width, vocabulary, torch.float32)
        gram = head_gram(*x[:4], num_samples=n).gram
        sketch = torch.randn(n, WIDTH, dtype=torch.float64)
        functions = {"scoring": lambda x=x, n=n: head_gram(*x[:4], num_samples=n)}
        times = interleaved(functions | selections(gram, sketch), 3)
        rows += row(f"head, N = {n}, T = {n * tokens}", times)
    header = ["batch", "remembered", "scoring", "select", "added, of scoring"]
    table(f"Remembering, D = {width}, V = {vocabulary}", header, rows)

    rows = []
    for n, numbers in ((16, 100_000), (16, 2_000_000), (64, 500_000)):
        grads = torch.randn(n, numbers)
        times = interleaved(
            {
                "gram": lambda g=grads: grad_gram(g),
                "sketch": lambda g=grads: operators.grad_sketch([g], WIDTH, SEED),
            },
            5,
        )
        share = f"{ratio(times['sketch'], times['gram']):.0%}"
        rows.append([n, numbers, median(times["gram"]), median(times["sketch"]), share])
    table("Sketches of gradients", ["N", "P", "grad_gram", "grad_sketch", "of grad_gram"], rows)
