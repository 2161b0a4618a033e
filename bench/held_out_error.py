"""How far A_last of a run may be off because its held-out texts are a sample.

`python -m bench held_out_error RUN...` loads each run's adapter, measures the accuracy of every
answer of every task on the held-out texts of the last boundary, and prints A_last with its standard
error: accuracies are means of independent rights and wrongs, macro accuracy is the mean over the
answers, A_last that over the tasks. Seeds and the order of the stream add to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from peft import load_peft_weights, set_peft_model_state_dict

from bench.timing import table
from oasis.lab.config import RunConfig
from oasis.lab.record.log import ADAPTER, CONFIG
from oasis.lab.workspace import Workspace


def macro(shares: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Mean over the answers and its variance, of (accuracy, number of texts > 1) of each."""
    mean = sum(p for p, _ in shares) / len(shares)
    return mean, sum(p * (1 - p) / (n - 1) for p, n in shares) / len(shares) ** 2


def measure(directory: Path, workspace: Workspace, config: RunConfig) -> tuple[float, float]:
    """A_last of the run in `directory` and its standard error, by macro accuracy."""
    tasks = []
    with workspace.lora(config) as model:
        set_peft_model_state_dict(model, load_peft_weights(str(directory / ADAPTER)))
        for task in workspace.tasks:
            counts = Counter(item["answer"] for item in task.test)
            shares = []
            for answer, n in counts.items():
                own = replace(task, test=[i for i in task.test if i["answer"] == answer])
                shares.append((workspace.measure(model, own).accuracy, n))
            tasks.append(macro(shares))
    mean = sum(accuracy for accuracy, _ in tasks) / len(tasks)
    return mean, math.sqrt(sum(variance for _, variance in tasks)) / len(tasks)


def main(arguments: Sequence[str]) -> None:
    if not arguments:
        raise SystemExit("expected run directories of one comparison, with their adapters")
    rows, workspace = [], None
    for directory in map(Path, arguments):
        config = RunConfig.load(directory / CONFIG)
        workspace = workspace or Workspace(config)
        workspace.check(config)
        mean, error = measure(directory, workspace, config)
        rows.append([directory.name, f"{100 * mean:.2f}", f"{100 * error:.2f}"])
    table(
        "A_last and its standard error from the held-out texts, in %",
        ["run", "A_last", "error"],
        rows,
    )
