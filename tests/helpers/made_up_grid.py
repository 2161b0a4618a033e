"""A grid of runs made up for the tests of the comparison's page: no model, seeded numbers."""

from __future__ import annotations

import json
from pathlib import Path

from runs_on_disk import made_up

POLICIES = ("oasis", "random", "divbs", "gradnorm", "selfsup", "coincide", "infobatch", "full")


def cell(folder: Path, label: str, policy: str, seed: int, ratio: float = 0.25, **options) -> Path:
    """A run directory as a cell of a grid leaves it."""
    path = made_up(folder / f"{label}-{ratio:g}-s{seed}", policy, seed=seed, batches=6)
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    kept = 1.0 if policy == "full" else ratio
    lines[0] |= {"label": label, "ratio": kept}
    shift = 0.002 * len(label) + 0.004 * seed
    for event in lines:
        if event["type"] == "evaluation" and event["after_task"] >= 0:
            event["accuracy"] = {k: min(v + shift, 1.0) for k, v in event["accuracy"].items()}
    scoring = 0 if policy in ("random", "full") else 4e12
    lines[-1] |= {"score_flops": scoring, "train_flops": 3e13 * kept, "tokens": 500}
    lines[-1] |= {"density": 0.3 + 0.01 * len(label), "bandwidth": 0.7, "skew": 0.1 + 0.01 * seed}
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"policy": policy, "label": label, "ratio": ratio, "seed": seed, "held_out": 400}
    settings |= {"policy_options": options}
    (path / "config.yaml").write_text(json.dumps(settings))
    return path


def grid(folder: Path, seeds: int = 3) -> list[Path]:
    """Policies at 25 %, three of ours with options, two ratios."""
    paths = []
    for seed in range(seeds):
        paths += [cell(folder, name, name, seed) for name in POLICIES]
        paths.append(cell(folder, "ORIS only", "oasis", seed, siren="none"))
        paths += [cell(folder, f"beta {b}", "oasis", seed, beta=b) for b in (0.1, 0.5)]
        paths += [cell(folder, name, name, seed, 0.125) for name in ("oasis", "random", "divbs")]
    return paths
