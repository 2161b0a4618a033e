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
