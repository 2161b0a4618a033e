"""Interleaved timing: on a shared machine only ratios taken within one round mean anything.

With OMP_NUM_THREADS=1 it is CPU time that is measured, in which other processes' turns on the core
do not count (what they do to caches and memory still does).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

CLOCK = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter


def interleaved(
    functions: dict[str, Callable],
    rounds: int = 7,
    repeat: int = 1,
    clock: Callable[[], float] = CLOCK,
) -> dict[str, list[float]]:
    """Seconds per call, `rounds` values each; every round calls each function `repeat` times."""
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


def faster(seconds: dict[str, list[float]], *names: str) -> str:
    """Of these, the name with the smallest median."""
    return min(names, key=lambda name: statistics.median(seconds[name]))


def median(seconds: list[float]) -> str:
    """The median, to be read."""
    return show(statistics.median(seconds))


def show(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def extra_megabytes(setup: str, code: str) -> float:
    """MiB that `code` adds at its peak to what is resident after `setup`, in a process of its own.

    Linux only: the peak (VmHWM) is reset in between by way of /proc/self/clear_refs.
    """
    program = f"""
def resident(field):
    status = open("/proc/self/status").read()
    return int(status.split(field + ":")[1].split()[0]) / 1024
{setup}
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS")
{code}
print(resident("VmHWM") - before)
"""
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    return float(out.split()[-1])


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
