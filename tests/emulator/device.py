"""Builds the emulated device (kernels/cuda under g++ with a sanitizer) and talks to it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KERNELS = ROOT / "kernels" / "cuda"
INCLUDES = [HERE / "include", KERNELS, ROOT / "csrc" / "include"]
LAUNCHERS = [KERNELS / "gram.cu", KERNELS / "siren.cu"]

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# The scheduler is part of the sanitized program for AddressSanitizer, and hidden from
# ThreadSanitizer, which must see the kernels' accesses alone.
SCHEDULER = {"address": SANITIZERS["address"], "thread": ["-DOASIS_TSAN"]}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0:history_size=4",
}

TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
RULES = {"exact": 0, "pairwise": 1, "residual": 2, "none": 3, "mean_field": 4}
SCALES = {"sample": 0, "batch": 1, "raw": 2, "within": 3}
DRAWS = {"bernoulli": 0, "shared": 1, "systematic": 2, "top": 3}
RECURSIONS = {"equations": 0, "released": 1}
ORDERS = {"forward": 0, "backward": 1, "shuffled": 2}


def build(sanitizer: str) -> Path:
    """The runner with this sanitizer, compiled unless the same sources already were."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    flags += [f"-I{folder}" for folder in INCLUDES]
    flags += ["-include", str(HERE / "include" / "emulator.h")]
    device = SANITIZERS[sanitizer]
    units = [(HERE / "emulator.cpp", SCHEDULER[sanitizer]), (HERE / "runner.cpp", device)]
    units += [(launcher, device) for launcher in LAUNCHERS]
    sources = sorted(p for f in (HERE, *INCLUDES) for p in f.rglob("*") if p.is_file())
    digest = hashlib.sha256(repr((compiler, flags, units)).encode())
    for source in sources:
        if source.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            digest.update(source.read_bytes())
    folder = ROOT / "build" / "emulator" / f"{sanitizer}-{digest.hexdigest()[:16]}"
    program = folder / "runner"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    objects = [folder / f"{source.stem}.{os.getpid()}.o" for source, _ in units]
    for (source, own), target in zip(units, objects, strict=True):
        command = [compiler, *flags, *own, "-x", "c++", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
    linked = folder / f"runner.{os.getpid()}"
    subprocess.run([compiler, *device, *map(str, objects), "-o", str(linked)], check=True)
    for target in objects:
        target.unlink()
    linked.rename(program)  # whoever builds at the same time finishes with the same file
    return program


class Fault(AssertionError):
    """The device stopped: a sanitizer or the emulator found something."""


class Device:
    """An emulated device. Tensors go in and come back changed in place."""

    def __init__(self, sanitizer: str = "address"):
        self.program, self.process = build(sanitizer), None
        self.settings = ("-", "0,3,232448,0")

    def configure(self, order="forward", processors=3, shared=227 * 1024, drop=("-", 0)):
        """Thread order, size of the device, and a barrier (file, line) that is left out."""
        self.settings = (drop[0], f"{ORDERS[order]},{processors},{shared},{drop[1]}")
        if self.process:
            self._configure()

    def _configure(self):
        self._request(f"configure:{self.settings[0]}", self.settings[1], "-", [])

    def call(self, name: str, integers, doubles, buffers: list[torch.Tensor]) -> str:
        """Runs a launcher; "ok" or its complaint. Raises Fault if the device died."""
        if self.process is None:
            self.process = subprocess.Popen(
                [self.program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **ENVIRONMENT},
            )
            self._configure()
        listed = [",".join(str(int(i)) for i in integers) or "-"]
        listed.append(",".join(float(d).hex() for d in doubles) or "-")
        return self._request(name, *listed, buffers)

    def _request(self, name, integers, doubles, buffers):
        arrays = [b.view(torch.uint8) if b.dtype == torch.bool else b for b in buffers]
        arrays = [a.view(torch.int16) if a.element_size() == 2 else a for a in arrays]
        assert all(a.is_contiguous() for a in arrays)
        sizes = ",".join(str(a.numel() * a.element_size()) for a in arrays) or "-"
        process = self.process
        try:
            process.stdin.write(f"{name} {integers} {doubles} {sizes}\n".encode())
            for a in arrays:
                process.stdin.write(a.numpy().tobytes())
            process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = process.stdout.readline()
        returned = [process.stdout.read(a.numel() * a.element_size()) for a in arrays]
        if not answer:
            _, complaint = process.communicate()
            self.process = None
            raise Fault(complaint.decode(errors="replace"))
        for a, data in zip(arrays, returned, strict=True):
            if a.numel():
                flat = np.frombuffer(data, dtype=a.numpy().dtype)
                a.copy_(torch.from_numpy(flat.copy()).reshape(a.shape))
        return answer.decode().strip()

    def close(self):
        if self.process:
            self.process.communicate()
            self.process = None

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

    def siren(self, gram, method="exact", ridge=0.0, valid=None, floor=-torch.inf, capacity=None):
        """(adjusted [N], order [N])."""
        n = gram.shape[0]
        buffers = siren_buffers(gram, valid, floor)
        integers = (n, capacity or n, RULES[method])
        answer = self.call("siren", integers, (ridge,), buffers)
        if answer != "ok":
            raise ValueError(answer)
        return buffers[3], buffers[4]

    def oris(self, raw, adjusted, valid, statistics, counters, **options):
        """(relative [N], probability [N], mask [N]); advances the state."""
        integers, doubles = oris_options(**options)
        results = oris_results(raw.shape[0])
        buffers = [raw, adjusted, valid, statistics, counters, *results]
        answer = self.call("oris", (raw.shape[0], *integers), (0.0, *doubles), buffers)
        assert answer == "ok", answer
        return results

    def select(self, gram, raw, valid, statistics, counters, method="exact", floor=-torch.inf,
               ridge=0.0, **options):  # fmt: skip
        """(adjusted, order, relative, probability, mask), all by one launch."""
        n = gram.shape[0]
        integers, doubles = oris_options(**options)
        results = oris_results(n)
        buffers = siren_buffers(gram, valid, floor)
        buffers += [raw, statistics, counters, *results]
        answer = self.call("select", (n, n, RULES[method], *integers), (ridge, *doubles), buffers)
        if answer != "ok":
            raise ValueError(answer)
        return (*buffers[3:5], *results)


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


def oris_options(ratio, beta, scale, draw, warmup, recursion, gain, slack, temperature):
    return (
        (SCALES[scale], DRAWS[draw], warmup, RECURSIONS[recursion]),
        (ratio, beta, gain, slack, temperature),
    )
