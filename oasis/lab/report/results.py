"""Runs as one tidy table, and what they say over the seeds: means, deviations, Welch's test."""

from __future__ import annotations

import dataclasses
import inspect
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from oasis import Selector
from oasis.lab.config import RunConfig
from oasis.lab.record.events import VERSION
from oasis.lab.record.log import finite
from oasis.lab.report.runs import Run
from oasis.lab.report.settings import DEFAULTS, settings
from oasis.lab.settings import Scope, names
from oasis.selection.presets import PRESETS
from oasis.train import atomic

LEVEL = 0.05
ROUNDING = 1e-9  # relative; accuracies are shares of far fewer examples
# Columns of the table that are measured, beside those that say which run it is.
METRICS = (
    *("a_last", "a_last_macro", "a_last_micro", "a_avg", "loss"),
    *("forgetting", "backward_transfer"),
    *("candidates", "selected", "realised_ratio", "tokens", "seconds", "score_seconds"),
    *("train_seconds", "evaluation_seconds", "score_flops", "train_flops", "density"),
    *("bandwidth", "skew"),
)
# Those that variants are tested by, and whether more of it is better.
TESTED = {"a_last": True, "a_avg": True, "loss": False}
DEFAULT_PRESET = inspect.signature(Selector).parameters["preset"].default


def row(run: Run) -> dict[str, Any]:
    """One run: what it is, and what was measured (None where it was not)."""
    given = run.settings
    end = run.end or {}
    order = given.get("tasks") or run.tasks
    values = {
        "run": run.name,
        "label": run.label,
        "policy": run.policy,
        "options": json.dumps(given.get("policy_options") or {}, sort_keys=True),
        "ratio": 1.0 if run.keeps_all else run.ratio,
        "seed": run.seed,
        "order": " > ".join(order),
        "finished": run.finished,
    }
    measured = {name: end.get(name) for name in METRICS}
    measured |= {
        "a_last": run.a_last,
        "a_last_macro": run.a_last_by("macro"),
        "a_last_micro": run.a_last_by("micro"),
        "a_avg": run.a_avg,
        "candidates": run.candidates,
        "selected": run.selected,
        "realised_ratio": run.realised_ratio,
        "seconds": run.seconds,
        "score_seconds": run.score_seconds,
        "train_seconds": run.train_seconds,
        "evaluation_seconds": run.evaluation_seconds,
    }
    columns = names(RunConfig, Scope.COLUMN)
    values |= measured | {name: given.get(name) for name in DEFAULTS if name in columns}
    return values | {"settings": json.dumps(settings(run), sort_keys=True)}


def table(runs: Iterable[Run]) -> pd.DataFrame:
    """One row per run."""
    return pd.DataFrame([row(run) for run in runs])


@dataclass
class Welch:
    """Welch's test of one variant against another on one metric; `p` two-sided. `difference` of
    the means, and how many values each side has. `p` None: no test, with a reason.
    """

    difference: float
    n: tuple[int, int]
    p: float | None
    reason: str = ""

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < LEVEL


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Welch:
    """Compare two samples. No p-value where one has a single value, or neither varies."""
    difference = sum(ours) / len(ours) - sum(theirs) / len(theirs)
    n = (len(ours), len(theirs))
    if min(n) < 2:
        return Welch(difference, n, None, "one seed: no test")
    if not _varies(ours) and not _varies(theirs):
        return Welch(difference, n, None, "no spread: no test")
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    p = float(test.pvalue)  # pyright: ignore[reportAttributeAccessIssue] # made as it is imported
    return Welch(difference, n, p)


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _varies(values: Sequence[float]) -> bool:
    """Whether they differ by more than rounding, from which a test would make any p at all."""
    return max(values) - min(values) > ROUNDING * max(map(abs, values))


@dataclass
class Variant:
    """Finished runs that differ in their seed alone: one policy variant at one ratio and order."""

    label: str
    policy: str
    options: dict[str, Any]
    ratio: float
    order: str
    runs: list[Run]
    rows: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)
    against_best: dict[str, Welch] = field(default_factory=dict)
    against_ours: dict[str, Welch] = field(default_factory=dict)
    best: dict[str, bool] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        return len(self.runs)

    def values(self, metric: str) -> list[float]:
        return [float(v) for v in self.rows[metric] if v is not None and not pd.isna(v)]

    def mean(self, metric: str) -> float | None:
        return self.known(metric) if self.values(metric) else None

    def known(self, metric: str) -> float:
        """The mean of a metric that every run has."""
        values = self.values(metric)
        return sum(values) / len(values)

    def deviation(self, metric: str) -> float | None:
        """Sample standard deviation over the seeds; None for fewer than two."""
        values = self.values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def mark(self, metric: str) -> str:
        """ "best", "close" (not significantly different from the best, by a test) or ""."""
        if self.best.get(metric):
            return "best"
        test = self.against_best.get(metric)
        return "close" if test and test.p is not None and not test.significant else ""

    def resolved(self) -> dict[str, Any]:
        return resolved(self.policy, self.options)

    @property
    def flops(self) -> float | None:
        return _sum(self.mean("score_flops"), self.mean("train_flops"))

    @property
    def work_seconds(self) -> float | None:
        """Mean seconds of scoring and training."""
        return _sum(self.mean("score_seconds"), self.mean("train_seconds"))


def variants(runs: Iterable[Run]) -> list[Variant]:
    """Group the finished runs and test each group against the best of those that it can be compared
    with, and against ours. Policies that keep everything take no part.

    Raises:
        ValueError: two runs of one label, ratio and order have the same seed or other settings, as
            those of two comparisons may.
    """
    members: dict[tuple, list[Run]] = {}
    for run in runs:
        if run.finished:
            ratio = 1.0 if run.keeps_all else run.ratio
            members.setdefault((run.label, ratio, " > ".join(run.tasks)), []).append(run)
    for group in members.values():
        _refuse_mixed(group)
    found = [
        Variant(
            label=label,
            policy=group[0].policy,
            options=group[0].settings.get("policy_options") or {},
            ratio=ratio,
            order=order,
            runs=group,
            rows=table(group),
            settings=settings(group[0]),
        )
        for (label, ratio, order), group in members.items()
    ]
    for alike in comparable([v for v in found if v.policy != "full"]):
        for metric in TESTED:
            _test_alike(alike, metric)
    for variant in found:  # full training stands beside every ratio; ours of its own order
        if variant.policy == "full":
            _against_ours(variant, found)
    return sorted(found, key=lambda v: -v.ratio)


def comparable(found: Iterable[Variant]) -> list[list[Variant]]:
    """Variants that can be compared: of one ratio and task order, and trained alike."""
    groups: dict[tuple, list[Variant]] = {}
    for variant in found:
        key = (variant.ratio, variant.order, json.dumps(variant.settings, sort_keys=True))
        groups.setdefault(key, []).append(variant)
    return list(groups.values())


def main_settings(found: Iterable[Variant]) -> dict[str, Any]:
    """The settings that most variants were trained with, of several the first."""
    known = [variant.settings for variant in found]
    return max(known, key=known.count, default={})


def resolved(policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """What options come to: those of ours in full, whatever preset they start from, so that what
    is said and what is meant by default compare equal.
    """
    if policy != "oasis":
        return options
    preset = dataclasses.asdict(PRESETS[options.get("preset", DEFAULT_PRESET)])
    values = {"metric": "fisher", **preset, **options}
    values.pop("preset", None)
    for name, value in preset.items():
        if isinstance(value, float):
            values[name] = float(values[name])  # a file's 1 is 1.0
    if values["siren"] != "residual":
        del values["ridge"]
    return values


def _refuse_mixed(group: Sequence[Run]) -> None:
    first, seen = group[0], {}
    for run in group:
        if run.seed is not None and run.seed in seen:
            raise ValueError(
                f"runs: {seen[run.seed].path} and {run.path} are both {run.label!r} with seed "
                f"{run.seed}; draw the runs of different comparisons on pages of their own"
            )
        seen[run.seed] = run
        a, b = ({**settings(r), "options": r.settings.get("policy_options")} for r in (first, run))
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) != b.get(name):
                raise ValueError(
                    f"runs: {first.path} and {run.path} are both {run.label!r}, but {name} is "
                    f"{a.get(name, 'the default')!r} there and {b.get(name, 'the default')!r} "
                    "here; draw them on pages of their own"
                )


def ours_among(found: Sequence[Variant]) -> Variant | None:
    """Ours: the one labelled "oasis", else `oasis` without options, else the first of them."""
    candidates = [v for v in found if v.policy == "oasis"]
    labelled = [v for v in candidates if v.label == "oasis"]
    plain = [v for v in candidates if not v.options]
    return (labelled or plain or candidates or [None])[0]


def ours_at_most(found: Iterable[Variant], order: str, settings: dict[str, Any]) -> Variant | None:
    """Ours at its largest ratio, of a task order and settings: what `full` stands beside."""
    same = [v for v in found if (v.order, v.settings) == (order, settings)]
    return ours_among(sorted(same, key=lambda v: -v.ratio))


def _test_alike(alike: Sequence[Variant], metric: str) -> None:
    scored = [variant for variant in alike if variant.values(metric)]
    if not scored:
        return
    pick = max if TESTED[metric] else min
    best = pick(scored, key=lambda variant: variant.known(metric))
    ours = ours_among(scored)
    for variant in scored:
        variant.best[metric] = variant is best
        if variant is not best:
            variant.against_best[metric] = welch(variant.values(metric), best.values(metric))
        if ours is not None and variant is not ours:
            variant.against_ours[metric] = welch(ours.values(metric), variant.values(metric))


def _against_ours(variant: Variant, found: Sequence[Variant]) -> None:
    ours = ours_at_most(found, variant.order, variant.settings)
    if ours is not None:
        for metric in TESTED:
            if variant.values(metric) and ours.values(metric):
                test = welch(ours.values(metric), variant.values(metric))
                variant.against_ours[metric] = test


def summary(found: Sequence[Variant]) -> dict[str, Any]:
    """What results.json holds."""

    def test(result: Welch | None) -> dict | None:
        if result is None:
            return None
        text = {"reason": result.reason} if result.reason else {}
        return {"difference": result.difference, "p": result.p, "n": list(result.n), **text}

    lines = []
    for variant in found:
        line: dict[str, Any] = {
            "label": variant.label,
            "policy": variant.policy,
            "options": variant.options,
            "ratio": variant.ratio,
            "order": variant.order,
            "seeds": variant.seeds,
        }
        for metric in METRICS:
            deviation = variant.deviation(metric)
            line[metric] = {"mean": variant.mean(metric), "sd": deviation}
        for metric in TESTED:
            line[metric] |= {
                "mark": variant.mark(metric),
                "against_best": test(variant.against_best.get(metric)),
                "ours_minus_this": test(variant.against_ours.get(metric)),
            }
        line["accuracy_matrix"] = {
            run.name: [e.accuracy for e in run.evaluations if e.after_task >= 0]
            for run in variant.runs
        }
        lines.append(line)
    return {
        "version": VERSION,
        "test": f"Welch's t-test, two-sided, level {LEVEL}; best of each ratio, task order and "
        "training; policies that train on everything apart; no correction for multiple comparisons",
        "variants": lines,
    }


def write(runs: Sequence[Run], found: Sequence[Variant], out: Path) -> None:
    """Write results.parquet, results.csv (one row per run) and results.json into `out`."""
    frame = table(runs)
    with atomic.replacing(out / "results.csv") as path:
        frame.to_csv(path, index=False)
    with atomic.replacing(out / "results.parquet") as path:
        frame.to_parquet(path, index=False)
    text = json.dumps(finite(summary(found)), indent=1, allow_nan=False)
    atomic.write(out / "results.json", text + "\n")
