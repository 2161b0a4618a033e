"""C++ of this repository as a process under a sanitizer: builds it and talks to it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent

SANITIZERS = {
    "address": ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0:history_size=4",
}
_PLAIN = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]


def build(
    name: str, units: list[tuple[Path, list[str]]], includes: list[Path], link: list[str]
) -> Path:
    """The program of `units` (source, own flags), compiled unless the same sources already were.

    `includes` are the folders of headers; their files and those of tests/sanitized decide what
    "the same" is.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = [*_PLAIN, f"-I{TESTS}", *(f"-I{folder}" for folder in includes)]
    digest = hashlib.sha256(repr((compiler, flags, units, link)).encode())
    folders = {*includes, *(source.parent for source, _ in units), TESTS / "sanitized"}
    for source in sorted({p for f in folders for p in f.rglob("*") if p.is_file()}):
        if source.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            digest.update(source.read_bytes())
    folder = ROOT / "build" / "sanitized" / f"{name}-{digest.hexdigest()[:16]}"
    program = folder / "program"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    objects = [folder / f"{i}.{os.getpid()}.o" for i in range(len(units))]

    def compile_unit(unit, target):
        source, own = unit
        command = [compiler, *flags, *own, "-x", "c++", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_unit, units, objects))
    linked = folder / f"program.{os.getpid()}"
    subprocess.run([compiler, *map(str, objects), *link, "-o", str(linked)], check=True)
    for target in objects:
        target.unlink()
    linked.rename(program)  # whoever builds at the same time finishes with the same file
    return program


class Fault(AssertionError):
    """The program stopped: a sanitizer found something."""


class Program:
    """A program that serves by tests/sanitized/serve.h. Tensors come back changed in place."""

    def __init__(self, path: Path, **environment: str):
        self.path, self.process = path, None
        self.environment = {**os.environ, **ENVIRONMENT, **environment}

    def started(self) -> None:
        """Called where a new process has begun."""

    def call(self, name: str, integers, doubles, buffers: list[torch.Tensor]) -> str:
        """ "ok" or what the function complained about. Raises Fault if the program died."""
        if self.process is None:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            self.process = subprocess.Popen([self.path], env=self.environment, **pipes)
            self.started()
        listed = [",".join(str(int(i)) for i in integers) or "-"]
        listed.append(",".join(float(d).hex() for d in doubles) or "-")
        return self.request(name, *listed, buffers)

    def request(self, name: str, integers: str, doubles: str, buffers: list[torch.Tensor]) -> str:
        """Like `call`, of the process that runs, with lists as they are sent."""
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

    def close(self) -> None:
        if self.process:
            self.process.communicate()
            self.process = None
