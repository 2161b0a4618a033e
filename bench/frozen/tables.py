"""Tables of trainings on frozen states: means, and paired differences over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from scipy import stats

from bench.timing import table

Values = dict[tuple[str, float], dict[int, tuple[float, float]]]  # macro, micro by seed


def tables(
    rows: Sequence[Mapping], ours: str = "oasis", unscored: Sequence[str] = ("random",)
) -> None:
    """Prints, by ratio, macro and micro accuracy by label, in percent, and what `ours` has more.

    Differences are paired by seed, with 95 % intervals of Student's t; p of the paired t-test is
    corrected by Holm over the labels of the ratio that share two seeds with `ours`. Labels with
    ratio 1 stand in every table, and so do larger shares of `unscored`, policies that cost less.
    """
    values = by_seed(rows)
    ratios = sorted({ratio for label, ratio in values if label == ours}, reverse=True)
    for ratio in ratios:
        _of_ratio(values, ratio, ours, unscored)


def by_seed(rows: Sequence[Mapping]) -> Values:
    """Macro and micro accuracy of each seed, by label and ratio."""
    values: Values = {}
    for row in rows:
        of_label = values.setdefault((row["label"], float(row["ratio"])), {})
        of_label[int(row["seed"])] = float(row["macro"]), float(row["micro"])
    return values


def _of_ratio(values: Values, ratio: float, ours: str, unscored: Sequence[str]) -> None:
    there = {label: seeds for (label, r), seeds in values.items() if r in (ratio, 1.0)}
    shares = {f"{label} {100 * r:g} %": seeds for (label, r), seeds in values.items()
              if label in unscored and ratio < r < 1}  # fmt: skip
    there |= shares
    first = there[ours]
    rows = []
    tests = {label: paired_difference(first, seeds, 0)
             for label, seeds in there.items() if label != ours}  # fmt: skip
    corrected = family(tests)
    for label, seeds in there.items():
        means = [fmean(v[k] for v in seeds.values()) for k in (0, 1)]
        row = [label, str(len(seeds)), *(f"{mean:.1f}" for mean in means)]
        if label == ours:
            rows.append((means[0], [*row, "", "", ""]))
            continue
        more = [with_interval(test) for test in (tests[label], paired_difference(first, seeds, 1))]
        p = f"{corrected[label]:.2g}" if label in corrected else ""
        rows.append((means[0], [*row, *more, p]))
    rows.sort(key=lambda row: -row[0])
    header = [
        "policy",
        "seeds",
        "macro",
        "micro",
        "ours more, macro",
        "ours more, micro",
        "Holm's p",
    ]
    table(f"{100 * ratio:g} %", header, [row for _, row in rows])


def with_interval(test: tuple[float, float, float]) -> str:
    """What `paired_difference` found, in points, without its p."""
    difference, half, _ = test
    return f"{difference:+.1f} +- {half:.1f}" if math.isfinite(half) else f"{difference:+.1f}"


def paired_difference(ours: Mapping, theirs: Mapping, which: int) -> tuple[float, float, float]:
    """Mean difference over the seeds of both, half its 95 % interval, p."""
    seeds = sorted(ours.keys() & theirs.keys())
    differences = [ours[s][which] - theirs[s][which] for s in seeds]
    if len(seeds) < 2:
        return fmean(differences), math.inf, 1.0
    error = stdev(differences) / math.sqrt(len(seeds))
    half = float(stats.t.ppf(0.975, len(seeds) - 1)) * error
    p = float(stats.ttest_1samp(differences, 0.0).pvalue) if error > 0 else 1.0
    return fmean(differences), half, p


def family(tests: Mapping[str, tuple[float, float, float]]) -> dict[str, float]:
    """Holm's p, by label, of those among `tests` (`paired_difference`) that shared two seeds."""
    tested = {label: p for label, (_, half, p) in tests.items() if math.isfinite(half)}
    return dict(zip(tested, holm(list(tested.values())), strict=True))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction of a family of p-values, in their order."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = largest
    return corrected
