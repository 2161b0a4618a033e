"""Gram matrices of given gradients, SIREN, ORIS, and both as a graph, as operators, as `select`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import oasis
from bench.device.bench import Bench
from oasis import _core
from oasis.operators import launch

SUBSET_FLOPS = 12  # float64, per subset of exact SIREN: two Newton steps of 1 / sqrt, sums


def grad_gram(bench: Bench) -> None:
    n, p = bench.sizes.samples, bench.sizes.columns
    for dtype in (torch.float32, torch.bfloat16):
        grads = bench.randn(n, p, dtype=dtype)
        # The products, n (n + 1) / 2 a column, take far less on tensor cores.
        floor = bench.over_bandwidth(n * p, dtype)
        name = f"N={n} x {p:,} {str(dtype)[6:]}"
        bench.measure(
            "grad_gram", name, lambda g=grads: torch.ops.oasis.grad_gram([g]), floor, "bytes"
        )
        del grads


def siren(bench: Bench) -> None:
    options = dict(dtype=torch.float64, device=bench.device)
    lowest = torch.full((), -torch.inf, **options)
    for method, counts in (("exact", bench.sizes.exact), ("residual", bench.sizes.residual)):
        for n in counts:
            gram, valid = _gram(bench, n), torch.ones(n, dtype=torch.bool, device=bench.device)
            bench.measure(
                "siren", f"{method}, N={n}",
                lambda x=(gram, valid, lowest, method, 0.0): torch.ops.oasis.siren(*x),
                *_floor(bench, method, n),
            )  # fmt: skip


def choosing(bench: Bench) -> float:
    """ORIS alone; then from the Gram matrix to the mask. Returns the seconds of `select`."""
    n = bench.sizes.samples
    gram, selector = _gram(bench, n), oasis.Selector(0.25).to(bench.device)
    valid = torch.ones(n, dtype=torch.bool, device=bench.device)
    scores = gram.diagonal().clone()
    tail = (selector.statistics, selector.counters, selector.preset.options(0.25))

    def fused():
        how = "gram", True, "exact", 0.0, False
        return torch.ops.oasis.select_(gram, None, None, *how, *tail)

    floor = _floor(bench, "exact", n)
    bench.measure("oris", f"N={n}", lambda: torch.ops.oasis.oris_(scores, scores, valid, *tail),
                  0.0, "one launch")  # fmt: skip
    bench.measure("Gram to mask", f"operators, N={n}", fused, *floor)
    again = not bench.gpu or not _core.build_info()["cuda"]
    bench.measure(
        "Gram to mask", f"CUDA graph, N={n}", fused if again else _graph(fused), *floor,
        "no CUDA kernels here: the operators again" if again else "",
    )  # fmt: skip
    return bench.measure(
        "Gram to mask", f"select(gram=...), N={n}", lambda: selector.select(gram=gram), *floor
    )


def _gram(bench: Bench, n: int) -> Tensor:
    grads = bench.randn(n, 4 * n, dtype=torch.float64)
    return grads @ grads.T


def _floor(bench: Bench, method: str, n: int) -> tuple[float, str]:
    """Seconds that N samples need, and why: on one multiprocessor what one block does."""
    flops = SUBSET_FLOPS * 2 ** (n - 1) if method == "exact" else n**3 / 3
    if bench.gpu and (method != "exact" or n <= launch.ONE_LAUNCH):
        bound = "float64 flops of one multiprocessor, or one launch"
        return flops * bench.processors / bench.scalar_rate, bound
    return flops / bench.scalar_rate, "float64 flops, or one launch"


def _graph(function: Callable) -> Callable:
    """Replays `function`, which its first call captures."""
    graph = torch.cuda.CUDAGraph()
    kept = []  # what the graph writes into

    def replay():
        if not kept:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                kept.append(function())
        graph.replay()

    return replay
