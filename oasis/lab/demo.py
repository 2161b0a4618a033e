"""`oasis demo`: a real language model learns a real stream from a quarter of it, and is compared.

The settings are in `demo.yaml` beside this file. The runs share the loaded model, the zero-shot
evaluation and what the frozen lower blocks give for each text, so they differ in selection alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from oasis.lab import report, strict_yaml
from oasis.lab.config import RunConfig
from oasis.lab.record.accuracy import standard_error
from oasis.lab.run import RunResult, run
from oasis.lab.workspace import Workspace

# What each run has of its own, by its name. "fill", on request, is ours in full training batches.
RUNS: dict[str, dict[str, Any]] = {
    "oasis": {},
    "fill": {"mode": "fill"},
    "random": {"policy": "random"},
    "full": {"policy": "full", "ratio": 1.0},
}
QUICK = {"arrivals": 32, "held_out": 32, "forward_batches": 1}


def load_config(out: str | Path = "runs/demo", *, quick: bool = False) -> RunConfig:
    """The packaged settings, for runs under `out`; `quick` shrinks the stream."""
    text = resources.files("oasis.lab").joinpath("demo.yaml").read_text(encoding="utf-8")
    settings = {**strict_yaml.parse(text, "demo.yaml"), "out": str(out)}
    return RunConfig.from_mapping({**settings, **QUICK} if quick else settings)


def demo(
    out: str | Path = "runs/demo",
    *,
    quick: bool = False,
    fill: bool = False,
    config: RunConfig | None = None,
    workspace: Workspace | None = None,
    console: Console | None = None,
) -> dict[str, RunResult]:
    """Run what `RUNS` has, print the table, write `report.html` into `out`.

    With `fill` the run of that name too, and it is said which mode is faster. `config` replaces
    the packaged settings (its `out` counts then), `workspace` a loaded one.
    """
    console = console or Console()
    started = time.perf_counter()
    config = config or load_config(out, quick=quick)
    runs = {name: own for name, own in RUNS.items() if fill or name != "fill"}
    arrivals = sum(config.counted_arrivals)
    steps = arrivals * config.iterations_per_sample
    console.print(
        f"[bold]{' -> '.join(config.tasks)}[/bold]: {arrivals} arrivals, "
        f"{int(steps)} candidate batches of {config.batch_size}, runs {', '.join(runs)}"
    )
    if workspace is None:
        workspace = Workspace(config)
    console.print("accuracy before training:")
    for name, value in workspace.zero_shots():
        console.print(f"  {_accuracies({name: value.accuracy})}")
    _warm(workspace, console)
    results = {}
    for name, own in runs.items():
        console.rule(name, align="left")
        result = run(config.replace(name=name, **own), workspace=workspace)
        results[name] = result
        last = dict(zip(config.tasks, result.history[-1].values(), strict=True))
        console.print(f"{name}, at the end: {_accuracies(last)}")
    folders = [result.directory for result in results.values()]
    page = report.write(folders, Path(config.out) / "report.html")
    console.print(table(config, results))
    console.print(f"report: {page}    all in {time.perf_counter() - started:.0f} s")
    return results


def _accuracies(accuracy: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {_percent(value)}" for name, value in accuracy.items())


def _percent(value: float | None) -> str:
    """Of a share; None has none (of a run that was stopped)."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _warm(workspace: Workspace, console: Console) -> None:
    if workspace.prefix is None:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("frozen blocks, once per text", total=len(workspace.items))
        for done in workspace.warm():
            bar.update(task, completed=done)


def table(config: RunConfig, results: Mapping[str, RunResult]) -> Table:
    """The comparison: a row for each run, by its name, and one for the model before training."""
    rows = Table(title="A quarter of the samples" if config.ratio == 0.25 else "Selection")
    for name in ("run", "samples", "ratio", "A_last", "A_avg", "time", "scoring", "of full"):
        rows.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    zero_shot = next(iter(results.values())).zero_shot
    before = sum(zero_shot.values()) / len(zero_shot)
    rows.add_row("untrained", "0", "", _percent(before), "", "", "", "")
    seconds = {name: one.score_seconds + one.train_seconds for name, one in results.items()}
    for name, result in results.items():
        work = seconds[name]
        rows.add_row(
            name,
            f"{result.selected}/{result.candidates}",
            f"{result.ratio:.4f}",
            _percent(result.a_last),
            _percent(result.a_avg),
            f"{work:.0f} s",
            f"{100 * result.score_seconds / work:.0f} %",
            f"{work / seconds['full']:.2f}",
        )
    rows.caption = _caption(config, results)
    if "fill" in seconds:
        rows.caption += f" {_faster(seconds)}"
    return rows


def _faster(seconds: Mapping[str, float]) -> str:
    """Which mode is: the paper's steps, of what each batch yields, or full training batches."""
    fill, step = seconds["fill"], seconds["oasis"]
    return (
        f"Full training batches (mode=fill, fewer and longer steps) took {fill / step:.2f} x the "
        f"time of the paper's steps (oasis), {'less' if fill < step else 'no less'}."
    )


def _caption(config: RunConfig, results: Mapping[str, RunResult]) -> str:
    assert config.held_out is not None  # of packaged tasks
    held_out = dict.fromkeys(config.tasks, config.held_out)
    error = max(standard_error(result.history[-1], held_out) for result in results.values())
    text = (
        f"{config.held_out} held-out examples a task: the standard error of A_last is "
        f"{100 * error:.1f} points; smaller differences mean nothing. Samples: trained on / "
        "candidates. Time: scoring and training; scoring: its share; of full: that time over the "
        "full run's."
    )
    ours = results["oasis"]
    if ours.forward_seconds:
        ratio = ours.score_seconds / ours.steps / ours.forward_seconds
        text += f" Scoring a batch takes {ratio:.2f} x a plain forward with loss."
    return text
