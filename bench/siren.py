"""Exact SIREN against the literal enumeration of the paper's equation on the same Gram matrix.

Floor at N = 16: 2^15 - 1 subsets, each one square root and one division; with AVX-512 (a 14-bit
estimate and two Newton steps, about 15 cycles per 8 subsets) 20 us at 3 GHz on one core.
"""

from __future__ import annotations

import time

import torch

from bench.timing import interleaved, show, table
from oasis import Selector, _core, reference, siren


def run() -> None:
    torch.manual_seed(0)
    rows = []
    for n in (8, 12, 16, 20, 24):
        grads = torch.randn(n, 4 * n, dtype=torch.float64)
        gram = (grads @ grads.T).contiguous()
        adjusted, order = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.int64)
        valid = torch.ones(n, dtype=torch.bool)

        def kernel(gram=gram, valid=valid, n=n, adjusted=adjusted, order=order):
            pointers = gram.data_ptr(), valid.data_ptr()
            results = adjusted.data_ptr(), order.data_ptr()
            _core.siren(*pointers, n, "exact", 0.0, -float("inf"), *results, 0)  # 0: I from K

        repeat = 50 if n <= 16 else 1
        selector = Selector(siren="exact")
        functions = {
            "kernel": kernel,
            "call": lambda g=gram: siren(g),
            "select": lambda g=gram, s=selector: s.select(gram=g),
        }
        times = interleaved(functions, 9, repeat)
        literal, speedup = "-", "-"
        if n <= 16:
            start = time.perf_counter()
            truth = reference.siren(gram)
            seconds = time.perf_counter() - start
            assert torch.allclose(adjusted, truth.adjusted, rtol=1e-9)
            literal, speedup = show(seconds), f"{seconds / min(times['call']):,.0f} x"
        rows.append([n, *(show(min(t)) for t in times.values()), literal, speedup])
    calls = ["kernel", "oasis.siren(K)", "select(gram=K)"]
    header = ["N", *calls, "literal enumeration", "speed-up of the call"]
    table("SIREN, exact", header, rows)
