"""The compiled core with every kernel run under AddressSanitizer and UndefinedBehaviorSanitizer.

Takes the place of `oasis._core` in the operators: what they say lies at an address is read from
this process, given to the sanitized program in allocations of exactly that size, and written back.
"""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import torch

from oasis import _core
from oasis.gram.backends.epilogue import FIELDS
from oasis.names import COUNTERS, STATISTICS
from oasis.operators.buffers import Selected

from .program import ROOT, SANITIZERS, Program, build

CSRC = ROOT / "csrc"
HERE = Path(__file__).resolve().parent


def build_cpu() -> Path:
    """The kernels for every instruction set that CMakeLists.txt compiles them for."""
    recipe = (ROOT / "CMakeLists.txt").read_text()
    kernels = re.search(r"set\(kernel_sources (.*?)\)", recipe, re.S)[1].split()
    flags = dict(re.findall(r'set\(flags_(\w+) "?(.*?)"?\)', recipe))
    if platform.machine() not in ("x86_64", "AMD64"):
        flags = {"baseline": flags["baseline"]}
    own = [*SANITIZERS["address"], "-fopenmp"]
    has = [f"-DOASIS_HAS_{isa}=1" for isa in flags]
    units = [
        (CSRC / "cpu" / f"{name}.cpp", [*own, *has])
        for name in ("calls", "dispatch", "select", "usable")
    ]
    units.append((HERE / "cpu.cpp", own))
    for isa, options in flags.items():
        # The compiler's own intrinsics headers read what they have just declared.
        quiet = ("unknown-warning-option", "maybe-uninitialized", "uninitialized")
        special = [*own, *(f"-Wno-{warning}" for warning in quiet), *options.split()]
        special += [f"-DOASIS_ISA={isa}", "-include", str(HERE / "allocation.h")]
        units += [(ROOT / source, special) for source in kernels]
    return build("cpu", units, [CSRC, CSRC / "include"], own)


def read(address: int, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.uint8)


def extent(sizes, strides) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


class SanitizedCore:
    """Same functions and arguments as `oasis._core`; what is not sanitized is its."""

    def __init__(self, program: Program):
        self.program = program

    def __getattr__(self, name: str):
        return getattr(_core, name)

    def _run(self, name, integers, doubles, buffers) -> None:
        memory = [read(*buffer) for buffer in buffers]
        answer = self.program.call(name, integers, doubles, memory)
        if answer != "ok":
            raise MemoryError if answer == "no memory" else ValueError(answer)
        for (address, size), changed in zip(buffers, memory, strict=True):
            if not torch.equal(changed, read(address, size)):  # what is only read stays untouched
                ctypes.memmove(address, changed.numpy().tobytes(), size)

    def gram(self, data, dtype, sizes, strides, wide, out):
        width = {"float32": 4, "float64": 8}.get(dtype, 2)
        buffers = [(data, extent(sizes, strides) * width), (out, sizes[0] ** 2 * 8)]
        self._run(f"gram:{dtype}", (wide, *sizes, *strides), (), buffers)

    def sketch(self, data, dtype, sizes, strides, first, dim, seed, exact, out):
        width = {"float32": 4, "float64": 8}.get(dtype, 2)
        buffers = [(data, extent(sizes, strides) * width), (out, sizes[0] * dim * 8)]
        integers = (first, dim, seed, exact, *sizes, *strides)
        self._run(f"sketch:{dtype}", integers, (), buffers)

    def remembered(self, *, n, width, capacity, ridge, **address):
        sizes = {"gram": n * n * 8, "sketch": n * width * 8, "valid": n}
        sizes |= {"memory": capacity * width * 8, "counters": len(COUNTERS) * 8}
        sizes |= {"left": n * n * 8, "scaled": n * width * 8}
        buffers = [(address[name], size) for name, size in sizes.items()]
        self._run("remembered", (n, width, capacity), (ridge,), buffers)

    def remember(self, sketch, mask, n, width, counters, memory, capacity):
        buffers = [(sketch, n * width * 8), (mask, n), (counters, len(COUNTERS) * 8)]
        buffers.append((memory, capacity * width * 8))
        self._run("remember", (n, width, capacity), (), buffers)

    def siren(self, gram, valid, n, method, ridge, floor, adjusted, order, informativeness):
        buffers = [(gram, n * n * 8), (valid, n), (adjusted, n * 8), (order, n * 8)]
        buffers.append((informativeness, n * 8 if informativeness else 0))
        self._run(f"siren:{method}", (n,), (ridge, floor), buffers)

    def oris(self, informativeness, adjusted, valid, n, statistics, counters, *rest):
        options, relative, probability, mask = rest
        buffers = [(informativeness, n * 8), (adjusted, n * 8), (valid, n)]
        buffers += [(statistics, len(STATISTICS) * 8), (counters, len(COUNTERS) * 8)]
        buffers += [(relative, n * 8), (probability, n * 8), (mask, n)]
        self._run("oris", (n,), options, buffers)

    def select(self, *, n, given, scores, products, raises, method, ridge, stop, options, fault,
               **address):  # fmt: skip
        written = dict.fromkeys(Selected._fields[:-1], n * 8) | {"mask": n, "skipped": n}
        sizes = {
            "gram": n * n * 8,
            "statistics": len(STATISTICS) * 8,
            "counters": len(COUNTERS) * 8,
        }
        sizes |= written | {"threshold": 8}
        found = torch.zeros(3, dtype=torch.int64)
        buffers = [(address[name], size) for name, size in sizes.items()]
        buffers.insert(1, (given, n if given else 0))
        buffers += [(found.data_ptr(), 24), (scores, n * 8 if scores else 0)]
        integers = (n, given != 0, products, raises, stop)
        self._run(f"select:{method}", integers, (ridge, *options), buffers)
        ctypes.c_int64.from_address(fault).value = int(found[0])
        return tuple(found.tolist())

    def head_block(self, float64, *, tokens, columns, column_stride, first, scale, softcap,
                   label_count, label_first, distinct, sketch_rows, sketches, vocabulary,
                   **address):  # fmt: skip
        width, t = 8 if float64 else 4, tokens
        sizes = {
            "logits": extent((t, columns), (1, column_stride)) * width,
            "bias": columns * width if address["bias"] else 0,
            "labels": t * 8,
            "label_columns": label_count * 8,
            "gathers": t * distinct * width,
        }
        token = (*FIELDS, "factor")
        buffers = [(address[k], size) for k, size in (sizes | dict.fromkeys(token, t * 8)).items()]
        tables, panels = sketches * vocabulary, -(-t // 16)
        buffers.append((address["sketch"], panels * 16 * sketch_rows * width))
        buffers += [(address["buckets"], tables * 4), (address["signs"], tables * width)]
        integers = (float64, t, columns, column_stride, first, label_count, label_first, distinct)
        integers += (sketch_rows, sketches, vocabulary)
        self._run("head_block", integers, (scale, softcap), buffers)

    def head_rescale(self, products, factor, tokens, float64):
        buffers = [(products, tokens**2 * (8 if float64 else 4)), (factor, tokens * 8)]
        self._run("head_rescale", (float64, tokens), (), buffers)

    def head_reduce(self, float64, *, tokens, distinct, samples, **address):
        width = 8 if float64 else 4
        sizes = {"products": tokens**2 * width, "inner": tokens**2 * width}
        sizes |= {"gathers": tokens * distinct * width, "label_index": tokens * 8}
        sizes |= {"offsets": (samples + 1) * 8, "coefficient": tokens * 8, "label": tokens * 8}
        buffers = [(address[k], size) for k, size in (sizes | {"gram": samples**2 * 8}).items()]
        self._run("head_reduce", (float64, tokens, distinct, samples), (), buffers)
