"""What one device can do, and the rows of what runs on it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

import oasis
from bench.device.clock import Clock
from bench.device.sheet import Row, Sheet
from bench.device.sizes import Sizes
from bench.timing import show
from oasis import _core, doctor

TYPES = {"bfloat16": torch.bfloat16, "float64": torch.float64}  # whose rates are measured


class Bench:
    """Measures cases one after the other, each against its floor, into a sheet."""

    def __init__(self, sizes: Sizes, device: torch.device, sheet: Sheet):
        self.sizes, self.device, self.sheet = sizes, device, sheet
        self.gpu = device.type == "cuda"
        self.clock = Clock(device, budget=0.5 if self.gpu else 0.02)
        self.generator = torch.Generator(device).manual_seed(0)
        self.failed: list[str] = []
        self._rates()

    def randn(self, *shape: int, dtype=torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device).to(dtype)

    def _rates(self) -> None:
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
        # A float64 product takes tensor cores, where roots and sums do not run: half of its rate.
        self.scalar_rate = self.rate[torch.float64] / (2 if self.gpu else 1)
        self.processors = 1
        if self.gpu:
            self.processors = torch.cuda.get_device_properties(self.device).multi_processor_count

    def over_bandwidth(self, count: int, dtype: torch.dtype) -> float:
        return count * dtype.itemsize / self.bandwidth

    def measure(
        self,
        group: str,
        name: str,
        function: Callable,
        floor: float,
        bound: str,
        note: str | Callable[[], str] = "",
        beside: float | None = None,
    ) -> float:
        """Writes a row and returns its seconds.

        A case that fails costs its row alone (NaN seconds). `beside`: the seconds of head_gram, to
        compare with. `note` may be a function, asked when the case has run.
        """
        floor, held = max(floor, self.trivial), 0
        try:
            if self.gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            seconds = self.clock(function)
            memory = (torch.cuda.max_memory_allocated() - held) / 2**20 if self.gpu else None
            note = note if isinstance(note, str) else note()
        except torch.OutOfMemoryError:
            return self.absent(Row(group, name, None, floor, bound, note="does not fit this card"))
        except Exception as error:  # a card may be there only once: measure the rest, exit with 1
            first = (str(error).splitlines() or [""])[0].replace("|", "/")
            self.failed.append(f"{group}, {name}: {type(error).__name__}: {first}")
            return self.absent(Row(group, name, None, floor, bound, note=f"failed: {first}"))
        if beside and math.isfinite(beside):
            note = f"{seconds / beside:.2f} x head_gram" + (note and f"; {note}")
        self.add(Row(group, name, seconds, floor, bound, memory, note))
        return seconds

    def add(self, row: Row) -> None:
        self.sheet.write(str(row))

    def absent(self, row: Row) -> float:
        """The seconds of a case without a time."""
        self.add(row)
        return math.nan

    def describe(self, tests: str) -> None:
        """What the rows rest on: versions, backends and the card's own rates."""
        info = _core.build_info()
        kernels = (
            f"CUDA kernels for {info['cuda_architectures']}" if info["cuda"] else "no CUDA kernels"
        )
        backends = doctor.backends(self.device.type).items()
        rates = {name: f"{self.rate[d] / 1e12:,.3g} TFLOP/s" for name, d in TYPES.items()}
        self.sheet.write(
            f"# {card(self.device)}",
            "",
            f"{versions()}; oasis {oasis.__version__}, {kernels}.",
            *(() if self.gpu else ("Tiny sizes on CPU tensors: the times mean nothing.",)),
            *((f"Tests: {tests}.",) if tests else ()),
            "",
            *(f"- {name}: {backend} ({why})" for name, (backend, why) in backends),
            "",
            f"Measured here: copy {self.bandwidth / 1e9:,.3g} GB/s (read and written); bfloat16 "
            f"product {rates['bfloat16']}; float64 product {rates['float64']}; a trivial operator "
            f"{show(self.trivial)}; {self.processors} multiprocessors. Times are medians.",
        )
        self.sheet.table()


def card(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU dry run"


def versions() -> str:
    found = [f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for name in ("triton", "numpy", "transformers", "liger_kernel", "cut_cross_entropy"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        found.append(f"{name} {getattr(module, '__version__', '')}".strip())
    return ", ".join(found)
