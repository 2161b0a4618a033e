"""Builds the emulated device (kernels/cuda under g++ with a sanitizer) and talks to it."""

from __future__ import annotations

from pathlib import Path

import torch
from sanitized.program import ROOT, SANITIZERS, Program, build

from oasis import names
from oasis.operators.buffers import Selected

HERE = Path(__file__).resolve().parent
KERNELS = ROOT / "kernels" / "cuda"
INCLUDES = [HERE / "include", KERNELS, ROOT / "csrc" / "include", ROOT / "csrc"]
LAUNCHERS = [KERNELS / f"{name}.cu" for name in ("gram", "siren", "memory")]

# The scheduler is part of the sanitized program for AddressSanitizer, and hidden from
# ThreadSanitizer, which must see the kernels' accesses alone.
SCHEDULER = {"address": SANITIZERS["address"], "thread": ["-DOASIS_TSAN"]}
TYPES = {getattr(torch, name): i for i, name in enumerate(names.DTYPES)}
RULES = {name: i for i, name in enumerate(names.RULES)}
ORDERS = {"forward": 0, "backward": 1, "shuffled": 2}


def build_device(sanitizer: str) -> Path:
    """The runner with this sanitizer."""
    first = ["-include", str(HERE / "include" / "emulator.h")]
    flags = SANITIZERS[sanitizer]
    units = [(HERE / "emulator.cpp", [*first, *SCHEDULER[sanitizer]])]
    units += [(source, [*first, *flags]) for source in (HERE / "runner.cpp", *LAUNCHERS)]
    return build(f"emulator-{sanitizer}", units, [HERE, *INCLUDES], flags)


class Device(Program):
    """An emulated device. Tensors go in and come back changed in place."""

    def __init__(self, sanitizer: str = "address"):
        super().__init__(build_device(sanitizer))
        self.settings = ("-", "0,3,232448,0")

    def configure(self, order="forward", processors=3, shared=227 * 1024, drop=("-", 0)):
        """Thread order, size of the device, and a barrier (file, line) that is left out."""
        self.settings = (drop[0], f"{ORDERS[order]},{processors},{shared},{drop[1]}")
        if self.process:
            self._configure()

    def _configure(self):
        self.request(f"configure:{self.settings[0]}", self.settings[1], "-", [])

    started = _configure

    # --- the launchers, as the operators see them ---------------------------------------------

    def gram(self, grads, out=None, offset=0, row_stride=None, shape=None):
        """Gram matrix of grads [N, P]; or of `shape` = (N, P) laid out in a flat buffer."""
        n, p = shape or grads.shape
        result = torch.full((n, n), torch.nan, dtype=torch.float64) if out is None else out
        stride = p if row_stride is None else row_stride
        integers = (TYPES[grads.dtype], n, p, stride, out is not None)
        offset *= grads.element_size()
        answer = self.call("gram", (*integers, offset), (), [grads.contiguous(), result])
        assert answer == "ok", answer
        return result

    def sketch(self, grads, dim, seed=0, first=0, exact=False, out=None):
        """Sketches [N, dim] of one parameter's gradients [N, P]."""
        n, p = grads.shape
        out = torch.zeros(n, dim, dtype=torch.float64) if out is None else out
        integers = (TYPES[grads.dtype], n, p, p, first, dim, seed, exact)
        answer = self.call("sketch", integers, (), [grads.contiguous(), out])
        assert answer == "ok", answer
        return out

    def remembered(self, gram, sketch, valid, memory, counters, ridge):
        """(Gram matrix [N, N] that is left, rescaled sketches [N, S])."""
        left, scaled = (torch.full_like(x, torch.nan) for x in (gram, sketch))
        buffers = [gram, sketch, valid, memory, counters, left, scaled]
        answer = self.call("remembered", (*sketch.shape, len(memory)), (ridge,), buffers)
        assert answer == "ok", answer
        return left, scaled

    def remember(self, sketch, mask, counters, memory):
        """Changes memory [m, S]."""
        buffers = [sketch, mask, counters, memory]
        answer = self.call("remember", (*sketch.shape, len(memory)), (), buffers)
        assert answer == "ok", answer

    def siren(self, gram, method="exact", ridge=0.0, valid=None, floor=-torch.inf, capacity=None):
        """(adjusted [N], order [N])."""
        n = gram.shape[0]
        buffers = siren_buffers(gram, valid, floor)
        integers = (n, capacity or n, RULES[method])
        answer = self.call("siren", integers, (ridge,), buffers)
        if answer != "ok":
            raise ValueError(answer)
        return buffers[3], buffers[4]

    def usable(self, gram, valid=None, scores=None, sketch=None, products=True, raises=True):
        """(left [N, N], informativeness, valid, skipped [N], wrong)."""
        n = gram.shape[0]
        none = torch.zeros(1, dtype=torch.float64)
        given = none.bool() if valid is None else valid
        inputs = [gram.contiguous(), given, *(none if x is None else x for x in (scores, sketch))]
        results = [torch.full(shape, torch.nan, dtype=torch.float64) for shape in ((n, n), (n,))]
        results += [torch.zeros(n, dtype=torch.bool) for _ in range(2)]
        results.append(torch.full((), -7, dtype=torch.int64))
        width = 0 if sketch is None else sketch.shape[1]
        integers = (n, width, valid is not None, scores is not None, raises, products)
        answer = self.call("usable", integers, (), [*inputs, *results])
        assert answer == "ok", answer
        return results

    def oris(self, raw, adjusted, valid, statistics, counters, **options):
        """(relative [N], probability [N], mask [N]); advances the state."""
        results = oris_results(raw.shape[0])
        buffers = [raw, adjusted, valid, statistics, counters, *results]
        answer = self.call("oris", (raw.shape[0],), names.pack(**options), buffers)
        assert answer == "ok", answer
        return results

    def select(self, gram, valid, statistics, counters, method="exact", ridge=0.0, stop=False,
               products=True, raises=True, **options):  # fmt: skip
        """A `Selected`, all by one launch; advances the state."""
        n = gram.shape[0]
        given = torch.zeros(1).bool() if valid is None else valid
        results = Selected.empty(n, gram.device)
        for x in results:
            x.fill_(torch.nan if x.is_floating_point() else x.dtype != torch.bool and -7)
        integers = (n, valid is not None, products, raises, stop, RULES[method])
        buffers = [gram.contiguous(), given, statistics, counters, *results]
        answer = self.call("select", integers, (ridge, *names.pack(**options)), buffers)
        if answer != "ok":
            raise ValueError(answer)
        return results


def siren_buffers(gram, valid, floor):
    n = gram.shape[0]
    valid = torch.ones(n, dtype=torch.bool) if valid is None else valid
    return [
        gram.contiguous(),
        valid,
        torch.tensor([floor], dtype=torch.float64),
        torch.full((n,), torch.nan, dtype=torch.float64),
        torch.full((n,), -7, dtype=torch.int64),
    ]


def oris_results(n):
    return (
        torch.full((n,), torch.nan, dtype=torch.float64),
        torch.full((n,), torch.nan, dtype=torch.float64),
        torch.zeros(n, dtype=torch.bool),
    )
