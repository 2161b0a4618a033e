"""What a run was trained with, beside what tells the variants of one comparison apart."""

from __future__ import annotations

from typing import Any

from oasis.lab.config import RunConfig
from oasis.lab.report.runs import Run
from oasis.lab.settings import Scope, names

# Settings by which variants of one comparison are told apart, or which change no result.
VARIED = names(RunConfig, Scope.FREE | Scope.VARIES)
DEFAULTS = RunConfig().model_dump()


def settings(run: Run) -> dict[str, Any]:
    """Settings of the run that are neither `VARIED` nor the default."""
    return {
        name: value
        for name, value in run.settings.items()
        if name not in VARIED and value != DEFAULTS.get(name)
    }


def identity(run: Run) -> dict[str, Any]:
    """All that runs which differ in their seed alone have in common, beside label and ratio."""
    options = run.settings.get("policy_options") or {}
    return {"model": run.model, "tasks": run.tasks, "policy_options": options, **settings(run)}
