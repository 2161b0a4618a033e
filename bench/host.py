"""Host time from Gram matrix to mask, N = 16: on the CPU, and on the path of a GPU.

The CPU's own share is the compiled core's: subsets, draws and checks. On the path of a GPU the CUDA
implementation takes the CPU's place under the dispatcher, on CPU tensors; its launcher and the
look-up of torch's stream are left out. What is left is Python, the dispatcher, checks of buffers
and memory for the results. Beside other jobs the smallest time of many calls is what counts.

Floors: 9 results at 0.75 us of torch.empty, one call through the dispatcher (4 us), Python around.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.timing import show, table
from oasis import Selector, _core, operators, siren
from oasis.operators import cuda, launch
from oasis.operators.buffers import CPU, Selected

N, CALLS = 16, 5000


class Calls(TorchDispatchMode):
    """How many operators torch dispatched: ours count as one, whatever they call."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def path_of_a_gpu() -> Iterator[None]:
    """`select_` as on CUDA, without its launch."""
    library = torch.library.Library("oasis", "IMPL")
    library.impl("select_", cuda.select_, "CPU", allow_override=True)
    stub = SimpleNamespace(cuda_select=lambda **_: True)
    with (
        patch.multiple(launch, BUILT=True, ONE_LAUNCH=N, _core=stub),
        patch.object(launch, "_queue", lambda device: nullcontext(0)),
    ):
        yield
    library._destroy()


def measured(function: Callable[[], object]) -> list[str]:
    """Smallest and median time of a call, and how often torch is called."""
    for _ in range(200):
        function()
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        function()
        seconds.append((time.perf_counter_ns() - start) * 1e-9)
    with Calls() as calls:
        function()
    return [show(min(seconds)), show(statistics.median(seconds)), str(calls.count)]


def kernels(gram: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The compiled core's share of `siren` and of `select`, by what calls it."""
    selector, results = Selector(0.25), Selected.empty(N, CPU)
    valid = torch.ones(N, dtype=torch.bool)
    step = dict(gram=gram.data_ptr(), given=0, scores=0, n=N, products=True, raises=True, ridge=1.0)
    step |= dict(stop=False, options=selector.preset.options(0.25), method=selector.preset.siren)
    step |= dict(statistics=selector.statistics.data_ptr(), counters=selector.counters.data_ptr())
    step |= results.addresses()
    pointers = gram.data_ptr(), valid.data_ptr(), N, "exact", 0.0, -float("inf")
    outputs = results.adjusted.data_ptr(), results.order.data_ptr(), 0
    kept = selector, results, valid  # while their addresses are in use
    return {
        "siren": lambda _kept=kept: _core.siren(*pointers, *outputs),
        "select": lambda _kept=kept: _core.select(**step),
    }


def run() -> None:
    grads = torch.randn(N, 4 * N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gram, selector = grads @ grads.T, Selector(0.25)
    core = kernels(gram)

    def operator():
        state = selector.statistics, selector.counters, selector._options()
        how = "gram", True, selector.preset.siren, selector.preset.ridge, False
        return operators.select_(gram, None, None, *how, *state)

    def selecting():
        return selector.select(gram=gram)

    rows = [
        ["CPU", "kernel of oasis.siren(K)", *measured(core["siren"])],
        ["CPU", "oasis.siren(K)", *measured(lambda: siren(gram))],
        ["CPU", "kernel of select(gram=K)", *measured(core["select"])],
        ["CPU", "operator of select(gram=K)", *measured(operator)],
        ["CPU", "select(gram=K)", *measured(selecting)],
    ]
    with path_of_a_gpu():
        rows.append(["GPU, no launch", "operator of select(gram=K)", *measured(operator)])
        rows.append(["GPU, no launch", "select(gram=K)", *measured(selecting)])
    header = ["path", "call", "smallest", "median", "calls of torch"]
    table(f"Host time, N = {N}, of {CALLS:,} calls", header, rows)
