"""Run directories made up for the tests of the report: small, seeded, in the trainer's format."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

TASKS = ["sentiment", "news", "spam", "authors"]


def write_events(path: Path, events: list[dict]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (path / "events.jsonl").write_text(lines, encoding="utf-8")
    return path


def start(policy: str, ratio: float = 0.25, seed: int = 0, tasks=TASKS, **more) -> dict:
    event = {"type": "start", "policy": policy, "ratio": ratio, "seed": seed, "tasks": list(tasks)}
    return event | {"boundaries": [], "model": "SmolLM2-135M-Instruct", "device": "cpu"} | more


def selection(batch: int, task: list[int], selected: list[bool], relative=None, **more) -> dict:
    event = {"type": "selection", "batch": batch, "step": batch, "task": task}
    event |= {"selected": selected, "informativeness": None, "relative": relative}
    event |= {"probability": None, "threshold": None, "mean": None, "deviation": None}
    return event | {"seconds": 0.5, "tokens": 2 * len(task), "skipped": 0} | more


def step(number: int, seconds: float = 1.0) -> dict:
    event = {"type": "step", "step": number, "loss": 1.0, "seconds": seconds}
    return event | {"samples": 1, "tokens": 2}


def evaluation(after_task: int, accuracy: dict[str, float], seconds: float = 2.0) -> dict:
    event = {"type": "evaluation", "step": 0, "after_task": after_task}
    return event | {"accuracy": accuracy, "seconds": seconds}


def made_up(
    path: Path, policy: str, *, seed: int = 0, batches: int = 40, shift: float = 0.0
) -> Path:
    """A whole run of four tasks that looks like a real one (random numbers, no model)."""
    rng = random.Random(f"{policy}{seed}")
    ratio = {"full": 1.0}.get(policy, 0.25)
    events = [start(policy, ratio, seed)]
    best = [0.5, 0.2, 0.6, 0.5]
    events.append(evaluation(-1, dict(zip(TASKS, best, strict=True))))
    index = 0
    for k in range(len(TASKS)):
        for _ in range(batches):
            task = [rng.choice(range(k + 1)) for _ in range(16)]
            z = [rng.gauss(-0.2, 1.1) for _ in task] if policy == "oasis" else None
            kept = [rng.random() < ratio for _ in task]
            if z:
                kept = [rng.random() < 1 / (1 + math.exp(1.31 - value)) for value in z]
            more = {"threshold": 1.31, "seconds": 0.45 if z else 0.0}
            events.append(selection(index, task, kept, z, **more))
            events.append(step(index + 1, 0.02 + 0.09 * sum(kept)))
            index += 1
        best = [b - 0.03 * (j < k) for j, b in enumerate(best)]
        best[k] = min(0.95, best[k] + 0.3 + shift + rng.uniform(-0.03, 0.03))
        events.append(evaluation(k, dict(zip(TASKS, best, strict=True)), 12.0))
    write_events(path, [*events, {"type": "end", "seconds": 300.0}])
    (path / "config.yaml").write_text(
        f"policy: {policy}\nratio: {ratio}\nseed: {seed}\nheld_out: 400\n"
    )
    return path
