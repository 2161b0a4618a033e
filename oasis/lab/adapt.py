"""Fast adaptation: how quickly models that runs left behind learn rows of a new task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis.lab.config import RunConfig
from oasis.lab.record.log import EVENTS, read_events
from oasis.lab.run import run, saved_settings

# What fine-tuning takes over from the run: the model, its LoRA, and how it is trained and judged.
KEPT = (
    *("model", "rank", "alpha", "lora_layers", "device", "dtype", "learning_rate"),
    *("max_grad_norm", "seed", "eval_batch_size"),
)
BASE = "base"  # what the model is called that no run has trained
PROBES = [2**k for k in range(13)]


@dataclass(frozen=True)
class Curve:
    """How good a model is at each task after so many steps, the first before any: accuracies in
    [0, 1], or of free text held-out losses in nats per label token.
    """

    name: str
    steps: list[int]
    accuracy: dict[str, list[float]]
    loss: dict[str, list[float]]


def adapting(
    runs: Sequence[Path], settings: Mapping[str, Any], *, out: str, base: bool = True
) -> list[RunConfig]:
    """The fine-tuning of each of `runs` with `settings` (of the rows at least), by plain training
    in one pass, and with `base` that of the model as it was before any run.

    Raises:
        ValueError: settings that there are none of; a run is of another model than the first, or
            is called as another.
    """
    found: list[RunConfig] = []
    saved = [saved_settings(path) for path in runs]
    for path, own in zip(runs, saved, strict=True):
        if own.get("model") != saved[0].get("model"):
            raise ValueError(
                f"runs: {path} is of the model {own.get('model')!r}, {runs[0]} of "
                f"{saved[0].get('model')!r}; adapt them apart"
            )
        kept = {name: own[name] for name in KEPT if name in own}
        plain = {"policy": "full", "probes": PROBES, "evaluate": "all"}
        plain["label"] = own.get("label") or own.get("policy")
        place = {"out": out, "name": path.resolve().name, "start": str(path)}
        for name in place.keys() & settings.keys():
            raise ValueError(f"{name}: the command decides; --out names another folder")
        found.append(RunConfig.from_mapping({**kept, **plain, **settings, **place}))
    if base:
        found.insert(0, found[0].replace(name=BASE, label=BASE, start=None))
    names = [config.name for config in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"runs: got two that are called {twice[0]!r}; adapt them apart")
    return found


def adapt(configs: Sequence[RunConfig], *, progress: bool = True) -> Iterator[Curve]:
    """Train as each of `configs` says, and how good it was on the way."""
    for config in configs:
        run(config, progress=progress)
        yield curve(config)


def curve(config: RunConfig) -> Curve:
    """From the record of a finished run."""
    events: list[Mapping[str, Any]] = [
        event
        for event in read_events(config.directory / EVENTS)
        if event["type"] in ("evaluation", "probe")
    ]
    values: dict[str, dict[str, list[float]]] = {"accuracy": {}, "loss": {}}
    for kind, tasks in values.items():
        for name in events[0].get(kind, {}):
            tasks[name] = [event[kind][name] for event in events]
    return Curve(config.name, [event["step"] for event in events], **values)


def tables(curves: Sequence[Curve]) -> Iterator[str]:
    """A table for each task: a line for each model, a column for each number of steps."""
    for kind, shown in (("accuracy", "{:.1%}"), ("loss", "{:.3f}")):
        for task in getattr(curves[0], kind):
            yield f"{task}: {'accuracy' if kind == 'accuracy' else 'held-out loss'} after steps"
            rows = [["", *map(str, curves[0].steps)]]
            for one in curves:
                rows.append([one.name, *(shown.format(v) for v in getattr(one, kind)[task])])
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for first, *cells in rows:
                padded = (cell.rjust(w) for cell, w in zip(cells, widths[1:], strict=True))
                yield "  ".join([f"  {first.ljust(widths[0])}", *padded])
