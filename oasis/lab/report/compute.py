"""Accuracy over compute: where each policy is beside a random share that costs as much.

Compute is that of scoring and training, in estimated operations and in measured seconds. Random at
several ratios, and training on everything, make a curve that is interpolated: linearly between two
ratios, for each seed on its own, and never beyond its ends.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from oasis.lab.report.results import Variant, main_settings

MEASURES = {
    "FLOPs": ("score_flops", "train_flops"),
    "seconds": ("score_seconds", "train_seconds"),
}
AVERAGES = {"macro": "a_last_macro", "micro": "a_last_micro"}


@dataclass(frozen=True)
class Point:
    """A policy at one ratio: mean `cost` over the seeds, and by seed [(cost, accuracy)]."""

    label: str
    policy: str
    ratio: float
    cost: float
    accuracy: float
    seeds: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Equal:
    """A policy beside random of equal compute: its `share` of the samples, its `accuracy` and what
    the policy has more, mean and standard deviation (None for one seed) over the seeds in common.
    `reached`: the share at which random is as good. None: beyond the ends of random's curve.
    """

    point: Point
    share: float | None = None
    accuracy: float | None = None
    difference: float | None = None
    deviation: float | None = None
    seeds: int = 0
    reached: float | None = None


def alike(found: Sequence[Variant], order: str) -> list[Variant]:
    """The variants of one task order and of the settings that most were trained with."""
    settings = main_settings(found)
    return [v for v in found if v.order == order and v.settings == settings]


def points(found: Iterable[Variant], measure: str, average: str) -> list[Point]:
    """One of each variant whose runs all say what it cost and how good it was, by label and cost.

    Args:
        measure: of `MEASURES`.
        average: of `AVERAGES`.
    """
    scoring, training = MEASURES[measure]
    result = []
    for variant in found:
        names = [scoring, training, AVERAGES[average]]
        scored, trained, accuracy = variant.rows[names].astype(float).to_numpy().T
        cost = scored + trained
        if np.isnan(cost + accuracy).any() or not (cost > 0).all():
            continue
        seeds = [
            -1 - place if pd.isna(seed) else int(seed)
            for place, seed in enumerate(variant.rows["seed"])
        ]
        pairs = zip(cost.tolist(), accuracy.tolist(), strict=True)
        result.append(
            Point(
                label=variant.label,
                policy=variant.policy,
                ratio=variant.ratio,
                cost=float(cost.mean()),
                accuracy=float(accuracy.mean()),
                seeds=dict(zip(seeds, pairs, strict=True)),
            )
        )
    return sorted(result, key=lambda point: (point.label, point.cost))


def curve(found: Sequence[Point], label: str) -> list[Point]:
    """The points of a label by rising cost, with everything at the right end of random's."""
    own = [point for point in found if point.label == label]
    if own and own[0].policy == "random":
        own += [p for p in found if p.policy == "full" and p.ratio > own[-1].ratio]
    return sorted(own, key=lambda point: point.cost)


def at_equal_compute(found: Sequence[Point]) -> list[Equal]:
    """Each point but random's beside random's curve; [] where random has no two points."""
    randoms = [point for point in found if point.policy == "random"]
    line = curve(found, randoms[0].label) if randoms else []
    if len(line) < 2:
        return []
    others = [p for p in found if p.policy != "random" and p not in line]
    return [_beside(point, line) for point in others]


def _beside(point: Point, line: Sequence[Point]) -> Equal:
    share = between(point.cost, [p.cost for p in line], [p.ratio for p in line])
    differences, accuracies = [], []
    for seed, (cost, accuracy) in point.seeds.items():
        own = sorted((*p.seeds[seed], p.ratio) for p in line if seed in p.seeds)
        random = between(cost, [p[0] for p in own], [p[1] for p in own])
        if random is not None:
            accuracies.append(random)
            differences.append(accuracy - random)
    reached = reaches(point.accuracy, [p.accuracy for p in line], [p.ratio for p in line])
    if share is None or not differences:
        return Equal(point, reached=reached)
    return Equal(
        point,
        share=share,
        accuracy=statistics.fmean(accuracies),
        difference=statistics.fmean(differences),
        deviation=statistics.stdev(differences) if len(differences) > 1 else None,
        seeds=len(differences),
        reached=reached,
    )


def between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """y at x on the line through the points of rising `xs`; None outside of them."""
    if len(xs) < 2 or not xs[0] <= x <= xs[-1]:
        return None
    return float(np.interp(x, xs, ys))


def reaches(y: float, ys: Sequence[float], xs: Sequence[float]) -> float | None:
    """The first x from which on the line through the points has `y` or more; None where it has not,
    or begins with more.
    """
    if not ys or ys[0] > y:
        return None
    if ys[0] == y:
        return xs[0]
    place = next((k for k, value in enumerate(ys) if value >= y), None)
    if place is None:
        return None
    return float(np.interp(y, ys[place - 1 : place + 1], xs[place - 1 : place + 1]))


def records(found: Sequence[Variant], order: str) -> pd.DataFrame:
    """`at_equal_compute` by every measure and average, one row each."""
    shown = alike(found, order)
    rows = [
        {
            "label": equal.point.label,
            "ratio": equal.point.ratio,
            "compute": measure,
            "accuracy": average,
            "cost": equal.point.cost,
            "a_last": equal.point.accuracy,
            "random_share": equal.share,
            "random_a_last": equal.accuracy,
            "difference": equal.difference,
            "deviation": equal.deviation,
            "seeds": equal.seeds,
            "random_share_as_good": equal.reached,
        }
        for measure in MEASURES
        for average in AVERAGES
        for equal in at_equal_compute(points(shown, measure, average))
    ]
    return pd.DataFrame(rows)
