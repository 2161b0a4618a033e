"""What a run says every `logging_steps` steps, in a line of its own in place of a printed dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback

from oasis.train.callbacks import SelectionProgress


def line(step: int, steps: int, logs: Mapping[str, Any]) -> str:
    """What the Trainer logs at a step, in words."""
    return f"step {step}/{steps}: {', '.join(_parts(logs))}"


def _parts(logs: Mapping[str, Any]) -> Iterator[str]:
    if "loss" in logs:
        yield f"loss {float(logs['loss']):.3f}"
    if logs.get("candidates"):
        taken = f"selected {logs['selected']} of {logs['candidates']}"
        yield f"{taken} ({100 * float(logs['ratio']):.2f} %)"
    if "scoring_share" in logs:
        yield f"scoring {100 * float(logs['scoring_share']):.0f} % of the time"
    if "learning_rate" in logs:
        yield f"learning rate {float(logs['learning_rate']):.2g}"


class LogLines(TrainerCallback):
    """Says them on the first process, above the bar where there is one."""

    def on_log(self, args, state, control, logs: dict[str, Any] | None = None, **kwargs):
        # Of the whole training `oasis.lab.summary` speaks.
        if state.is_world_process_zero and logs and "loss" in logs:
            tqdm.write(line(state.global_step, state.max_steps, logs))


class Bar(SelectionProgress):
    """The trainer's bar, which leaves the lines to `LogLines`."""

    def on_log(self, args, state, control, logs: dict[str, Any] | None = None, **kwargs):
        pass


def install(trainer: Trainer, progress: bool) -> None:
    """Have `trainer` say what it logs as `line` does; nothing without `progress`."""
    trainer.remove_callback(PrinterCallback)
    bar = trainer.pop_callback(SelectionProgress)
    if isinstance(bar, SelectionProgress):
        trainer.add_callback(Bar(bar.counts, bar.step, bar.task_names))
    if progress:
        trainer.add_callback(LogLines())
