"""Seconds of a call on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


class Clock:
    """Median seconds of a call: CUDA events after a warm-up; on a CPU, the wall."""

    def __init__(self, device: torch.device, budget: float):
        self.gpu, self.budget = device.type == "cuda", budget

    def __call__(self, function: Callable, rounds: int = 15) -> float:
        function()  # compiles what is compiled on first use
        self.wait()
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

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()
