"""Every kernel on one NVIDIA GPU: time, floor, gap, memory; and what choosing costs.

`bench/device.sh` builds, tests and then runs this; `python -m bench.device [--dry] [--out FOLDER]`
writes FOLDER/device-<card>.md alone. `--dry` goes the same way on CPU tensors of tiny sizes: it
proves that the script runs, its times mean nothing.

Floors are what this card can do, measured here: bytes over the bandwidth of a copy, flops over the
rate of a large bfloat16 product (float64 work: over that of a float64 product), and never less than
one trivial operator takes under the same clock. "Share" is floor / time.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oasis
from bench import device_rivals as rivals
from bench.timing import show
from oasis import _core, doctor

SUBSET_FLOPS = 12  # float64, per subset of exact SIREN: two Newton steps of 1 / sqrt, sums
LAYERS = 32  # of the 8B shape
TYPES = {"bfloat16": torch.bfloat16, "float64": torch.float64}  # whose rates are measured
HEADER = ("what", "case", "time", "floor", "share", "floor by", "extra memory", "note")


@dataclass(frozen=True)
class Sizes:
    """What is measured: of a GPU, or of the dry run."""

    copy: int = 1 << 30  # bytes
    square: int = 8192  # of the bfloat16 product; half of it in float64
    samples: int = 16
    columns: int = 64_000_000
    exact: tuple[int, ...] = (16, 20, 24)
    residual: tuple[int, ...] = (64, 256)
    tokens: tuple[int, ...] = (1600, 3200)
    width: int = 4096
    vocabularies: tuple[int, ...] = (128256, 151936)
    feedforward: int = 14336
    heads: int = 32
    groups: int = 8
    positions: int = 512  # per sample, in the forward of the stack
    layers: int = 2  # timed; extrapolated to LAYERS


DRY = Sizes(
    copy=1 << 20, square=64, columns=4000, exact=(4, 6), residual=(8,), tokens=(32, 64), width=32,
    vocabularies=(96, 112), feedforward=64, heads=4, groups=2, positions=8,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    group: str
    name: str
    seconds: float | None  # None: not run, `note` says why
    floor: float
    bound: str  # what the floor is made of
    memory: float | None = None  # MiB beyond what was held, None where not measured
    note: str = ""


class Clock:
    """Median seconds of a call: CUDA events after a warm-up; on a CPU, the wall."""

    def __init__(self, device: torch.device, budget: float):
        self.gpu, self.budget = device.type == "cuda", budget

    def __call__(self, function: Callable, rounds: int = 15) -> float:
        function()  # compiles what is compiled on first use
        self._wait()
        once = self._round(function, 1)
        # Short calls are repeated within a round, lest the events themselves be what is timed.
        repeat = max(1, min(100, int(1e-3 / once))) if self.gpu else 1
        rounds = max(3, min(rounds, int(self.budget / (once * repeat))))
        self._round(function, repeat)
        return statistics.median(self._round(function, repeat) for _ in range(rounds))

    def _round(self, function: Callable, repeat: int) -> float:
        if not self.gpu:
            began = time.perf_counter()
            for _ in range(repeat):
                function()
            return (time.perf_counter() - began) / repeat
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeat):
            function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeat

    def _wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()


class Bench:
    def __init__(self, sizes: Sizes, device: torch.device):
        self.sizes, self.device = sizes, device
        self.clock = Clock(device, budget=0.5 if device.type == "cuda" else 0.02)
        self.generator = torch.Generator(device).manual_seed(0)
        self.rows: list[Row] = []
        self.failed: list[str] = []

    def randn(self, *shape: int, dtype=torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device).to(dtype)

    def measure(
        self, group, name, function, floor, bound, note: str = "", beside: float | None = None
    ) -> float:
        """Adds a row and returns its seconds. `beside`: those of head_gram, to compare with.

        A case that fails costs its row alone (NaN seconds): the card may be there only once.
        """
        gpu, held = self.device.type == "cuda", 0
        floor = max(floor, self.trivial)
        try:
            if gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            seconds = self.clock(function)
        except torch.OutOfMemoryError:
            self.rows.append(Row(group, name, None, floor, bound, note="does not fit this card"))
            return math.nan
        except Exception as error:  # a card may be there only once: measure the rest, exit with 1
            first = (str(error).splitlines() or [""])[0].replace("|", "/")
            self.failed.append(f"{group}, {name}: {type(error).__name__}: {first}")
            self.rows.append(Row(group, name, None, floor, bound, note=f"failed: {first}"))
            return math.nan
        memory = (torch.cuda.max_memory_allocated() - held) / 2**20 if gpu else None
        if beside and math.isfinite(beside):
            note = f"{seconds / beside:.2f} x head_gram" + (note and f"; {note}")
        self.rows.append(Row(group, name, seconds, floor, bound, memory, note))
        return seconds

    # --- what the card can do -----------------------------------------------------------------

    def rates(self) -> None:
        s = self.sizes
        one = torch.zeros(1, device=self.device)
        self.trivial = self.clock(lambda: one.add_(1))
        source = torch.zeros(s.copy, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.bandwidth = 2 * s.copy / self.clock(lambda: target.copy_(source))
        source = target = None  # freed
        self.rate = {}
        for dtype, side in ((torch.bfloat16, s.square), (torch.float64, s.square // 2)):
            a = self.randn(side, side, dtype=dtype)
            self.rate[dtype] = 2 * side**3 / self.clock(lambda a=a: a @ a)

    def over_bandwidth(self, count: int, dtype: torch.dtype) -> float:
        return count * torch.empty((), dtype=dtype).element_size() / self.bandwidth

    # --- kernels ------------------------------------------------------------------------------

    def grad_gram(self) -> None:
        n, p = self.sizes.samples, self.sizes.columns
        for dtype in (torch.float32, torch.bfloat16):
            grads = self.randn(n, p, dtype=dtype)
            # The products, n (n + 1) / 2 a column, take far less on tensor cores.
            floor = self.over_bandwidth(n * p, dtype)
            name = f"N={n} x {p:,} {str(dtype)[6:]}"
            self.measure(
                "grad_gram", name, lambda g=grads: torch.ops.oasis.grad_gram([g]), floor, "bytes"
            )
            del grads

    def gram(self, n: int) -> Tensor:
        grads = self.randn(n, 4 * n, dtype=torch.float64)
        return grads @ grads.T

    def siren(self) -> None:
        options = dict(dtype=torch.float64, device=self.device)
        floor = torch.full((), -torch.inf, **options)
        for method, counts in (("exact", self.sizes.exact), ("residual", self.sizes.residual)):
            for n in counts:
                gram, valid = self.gram(n), torch.ones(n, dtype=torch.bool, device=self.device)
                flops = SUBSET_FLOPS * 2 ** (n - 1) if method == "exact" else n**3 / 3
                self.measure(
                    "siren", f"{method}, N={n}",
                    lambda x=(gram, valid, floor, method, 0.0): torch.ops.oasis.siren(*x),
                    flops / self.rate[torch.float64], "float64 flops, or one launch",
                )  # fmt: skip

    def choosing(self) -> None:
        """ORIS alone; from the Gram matrix to the mask: as a graph, as operators, as `select`."""
        n = self.sizes.samples
        gram, selector = self.gram(n), oasis.Selector(0.25).to(self.device)
        valid = torch.ones(n, dtype=torch.bool, device=self.device)
        lowest = torch.full((), -torch.inf, dtype=torch.float64, device=self.device)
        scores = gram.diagonal().clone()
        tail = (selector.statistics, selector.counters, selector.preset.options(0.25))

        def fused():
            return torch.ops.oasis.siren_oris_(gram, scores, valid, lowest, "exact", 0.0, *tail)

        flops = SUBSET_FLOPS * 2 ** (n - 1) / self.rate[torch.float64]
        bound = "float64 flops, or one launch"
        self.measure("oris", f"N={n}", lambda: torch.ops.oasis.oris_(scores, scores, valid, *tail),
                     0.0, "one launch")  # fmt: skip
        self.measure("Gram to mask", f"operators, N={n}", fused, flops, bound)
        again = self.device.type != "cuda" or not _core.build_info()["cuda"]
        self.measure(
            "Gram to mask", f"CUDA graph, N={n}", fused if again else self.graph(fused), flops,
            bound, "no CUDA kernels here: the operators again" if again else "",
        )  # fmt: skip
        self.select = self.measure(
            "Gram to mask", f"select(gram=...), N={n}", lambda: selector.select(gram=gram), flops,
            bound, "with its checks, which wait for the device",
        )  # fmt: skip

    def graph(self, function) -> Callable:
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

    # --- the output head ----------------------------------------------------------------------

    def head(self) -> None:
        """head_gram, plain heads of the same tokens, and head_gram over the whole forward."""
        s = self.sizes
        stack = self.stack()
        for vocabulary in s.vocabularies:
            weight = self.randn(vocabulary, s.width) / s.width**0.5
            for tokens in s.tokens:
                hidden = self.randn(tokens, s.width)
                labels = torch.randint(
                    vocabulary, (tokens,), generator=self.generator, device=self.device
                )
                sample = torch.arange(tokens, device=self.device) * s.samples // tokens
                problem = hidden, weight, labels, sample
                self.head_rows(problem, stack)

    def head_rows(self, problem, stack: float) -> None:
        hidden, weight, labels, sample = problem
        (tokens, width), vocabulary = hidden.shape, weight.shape[0]
        shape = f"T={tokens}, D={width}, V={vocabulary} bfloat16"
        n = self.sizes.samples
        products, square = 2 * tokens * vocabulary * width, tokens**2 * vocabulary
        rate = self.rate[torch.bfloat16]
        numbers = (vocabulary + tokens) * width
        floor = max((products + square) / rate, self.over_bandwidth(numbers, torch.bfloat16))
        plain = max(products / rate, self.over_bandwidth(numbers, torch.bfloat16))
        options = dict(num_samples=n, method="ghost")
        case = "head_gram", shape, lambda: oasis.head_gram(*problem, **options)
        ours = self.measure(*case, floor, "2 T V D + T^2 V bfloat16 flops")
        flops = "2 T V D bfloat16 flops"
        name = f"logits and cross-entropy, {shape}"
        function = lambda: rivals.plain(hidden, weight, labels)  # noqa: E731
        head = self.measure("other heads", name, function, plain, flops, beside=ours)
        for rival, function in rivals.found(hidden, weight, labels).items():
            name = f"{rival}, {shape}"
            if isinstance(function, str):
                self.rows.append(Row("other heads", name, None, plain, flops, note=function))
            else:
                self.measure("other heads", name, function, plain, flops, beside=ours)
        if (tokens, vocabulary) == (self.sizes.tokens[0], self.sizes.vocabularies[0]):
            # The logits, the gradients (as many flops again), written once and read once.
            floor_of_rival = 2 * products / rate + 2 * self.over_bandwidth(
                n * vocabulary * width, torch.bfloat16
            )
            kept = {}
            self.measure(
                "other heads", f"gradient per sample by autograd, then grad_gram, {shape}",
                lambda: kept.update(gram=rivals.autograd(*problem, n)), floor_of_rival,
                "4 T V D bfloat16 flops, gradients written and read", beside=ours,
            )  # fmt: skip
            if kept and math.isfinite(ours):
                off = cosines(kept["gram"]) - cosines(oasis.head_gram(*problem, **options).gram)
                note = f"{self.rows[-1].note}; cosines differ by at most {off.abs().max():.1e}"
                self.rows[-1] = replace(self.rows[-1], note=note)
        self.overhead(shape, ours + self.select, head, stack, floor)

    def overhead(self, shape, scoring, head, stack, floor) -> None:
        """What choosing adds to a forward, whose own head over the same tokens it can replace."""
        row = "overhead", f"head_gram + select over the forward, {shape}"
        bound = "that of head_gram"
        if not math.isfinite(scoring + head + stack):
            self.rows.append(Row(*row, None, floor, bound, note="a part of it was not measured"))
            return
        note = (
            f"{100 * scoring / stack:+.2f} % of the layers ({show(stack)}); less the plain head, "
            f"{100 * (scoring - head) / (stack + head):+.2f} % of layers and head"
        )
        self.rows.append(Row(*row, scoring, floor, bound, note=note))

    def stack(self) -> float:
        """Seconds of the forward of LAYERS layers of the 8B shape, from a few timed ones."""
        s = self.sizes
        layers = [self._layer() for _ in range(s.layers)]
        x = self.randn(s.samples, s.positions, s.width)

        def forward(x=x):
            with torch.no_grad():
                for layer in layers:
                    x = layer(x)
            return x

        positions = s.samples * s.positions
        weights = sum(p.numel() for layer in layers for p in layer.parameters())
        flops = 2 * positions * weights + s.layers * 2 * positions * s.positions * s.width
        seconds = self.measure(
            "forward", f"{s.layers} layers, {s.samples} x {s.positions} positions", forward,
            flops / self.rate[torch.bfloat16], "bfloat16 flops, causal half of attention",
            note=f"x {LAYERS // s.layers} taken as the 8B stack of {LAYERS}",
        )  # fmt: skip
        return seconds * LAYERS / s.layers

    def _layer(self) -> nn.Module:
        s = self.sizes
        layer = Layer(s.width, s.feedforward, s.heads, s.groups)
        return layer.to(torch.bfloat16).to_empty(device=self.device).filled(self.generator)

    def run(self) -> None:
        self.rates()
        self.grad_gram()
        self.siren()
        self.choosing()
        self.head()


def cosines(gram: Tensor) -> Tensor:
    norms = gram.diagonal().sqrt()
    return gram / torch.outer(norms, norms)


class Layer(nn.Module):
    """A decoder layer of the Llama shape, without rotary positions (elementwise, some 1 %)."""

    def __init__(self, width: int, feedforward: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        with torch.device("meta"):
            out = (heads + 2 * groups) * self.size
            self.qkv, self.out = (nn.Linear(width, n, bias=False) for n in (out, width))
            self.up = nn.Linear(width, 2 * feedforward, bias=False)
            self.down = nn.Linear(feedforward, width, bias=False)
            self.before, self.between = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))

    def filled(self, generator: torch.Generator) -> Layer:
        with torch.no_grad():
            for p in self.parameters():
                p.normal_(0, p.shape[-1] ** -0.5, generator=generator)
        return self

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(self.before(x)).view(b, t, -1, self.size).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.groups, self.groups], 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.up(self.between(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


# --- the report -------------------------------------------------------------------------------


def card(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU dry run"


def versions() -> str:
    found = [f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for name in ("triton", "liger_kernel", "cut_cross_entropy"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        found.append(f"{name} {getattr(module, '__version__', '')}".strip())
    return ", ".join(found)


def report(bench: Bench, seconds: float, tests: str) -> str:
    device, info = bench.device, _core.build_info()
    kernels = (
        f"CUDA kernels for {info['cuda_architectures']}" if info["cuda"] else "no CUDA kernels"
    )
    backends = doctor.backends(device.type).items()
    rates = {name: f"{bench.rate[d] / 1e12:,.3g} TFLOP/s" for name, d in TYPES.items()}
    lines = [
        f"# {card(device)}",
        "",
        f"{versions()}; oasis {oasis.__version__}, {kernels}.",
        *(() if device.type == "cuda" else ("Tiny sizes on CPU tensors: the times mean nothing.",)),
        *((f"Tests: {tests}.",) if tests else ()),
        "",
        *(f"- {name}: {backend} ({why})" for name, (backend, why) in backends),
        "",
        f"Measured here: copy {bench.bandwidth / 1e9:,.3g} GB/s (read and written); bfloat16 "
        f"product {rates['bfloat16']}; float64 product {rates['float64']}; a trivial operator "
        f"{show(bench.trivial)}. Times are medians; all of it took {seconds:.0f} s.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
    ]
    for row in bench.rows:
        ran = row.seconds is not None
        cells = (
            row.group,
            row.name,
            show(row.seconds) if ran else "not run",
            show(row.floor),
            f"{100 * row.floor / row.seconds:.0f} %" if ran else "-",
            row.bound,
            "-" if row.memory is None else f"{row.memory:,.0f} MiB",
            row.note,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="tiny sizes on CPU tensors")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), metavar="FOLDER")
    parser.add_argument("--tests", default="", help="what the tests said, for the report")
    given = parser.parse_args(arguments)
    if not given.dry and not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use was found; --dry runs on the CPU")
    bench = Bench(DRY if given.dry else Sizes(), torch.device("cpu" if given.dry else "cuda"))
    began = time.perf_counter()
    bench.run()
    text = report(bench, time.perf_counter() - began, given.tests)
    name = re.sub(r"[^A-Za-z0-9]+", "-", card(bench.device)).strip("-")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"device-{name}.md"
    path.write_text(text)
    print(f"{text}\nwritten to {path}")
    for failure in bench.failed:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
