"""Interleaved timing: on a shared machine only ratios taken within one round mean anything."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable


def interleaved(
    functions: dict[str, Callable],
    rounds: int = 7,
    repeat: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call, `rounds` values each; every round calls each function `repeat` times.

    With `clock=time.process_time`, other processes' turns on the cores do not count.
    """
    for f in functions.values():
        f()
    seconds = {name: [] for name in functions}
    for _ in range(rounds):
        for name, f in functions.items():
            start = clock()
            for _ in range(repeat):
                f()
            seconds[name].append((clock() - start) / repeat)
    return seconds


def ratio(a: list[float], b: list[float]) -> float:
    """Median over rounds of a / b."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def show(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def peak_megabytes(code: str) -> float:
    """Peak resident memory of `code` in a process of its own, in MiB."""
    # VmHWM, not getrusage: the latter starts at the size of the process that forked.
    program = code + "\nprint(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    return int(out.split()[-1]) / 1024


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
