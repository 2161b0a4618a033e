"""Runs grouped by policy and ratio, each group with its name and its look in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oasis.lab.report.runs import Run

# Okabe and Ito's colours, told apart with every common colour blindness. Black is the page's ink.
INK = "#010203"  # stand-ins: html.py turns them into CSS variables, so that dark mode works
BLUE, ORANGE, GREEN, VERMILLION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, YELLOW = "#cc79a7", "#56b4e9", "#f0e442"

_FIXED = {"oasis": BLUE, "random": ORANGE, "full": INK}
_OTHERS = (GREEN, VERMILLION, PURPLE, SKY, YELLOW)
_MARKERS = {"oasis": "o", "random": "s", "full": "D"}
_OTHER_MARKERS = ("^", "v", "P", "X", "*")


@dataclass
class Group:
    """Runs that differ in their seed only. Line style and marker repeat what the colour says."""

    label: str
    policy: str
    ratio: float | None
    runs: list[Run]
    color: str
    marker: str
    linestyle: str | tuple

    def names(self) -> list[str]:
        """One name per run: the group's, with seed or folder where there are several."""
        if len(self.runs) == 1:
            return [self.label]
        seeds = [run.seed for run in self.runs]
        if None in seeds or len(set(seeds)) < len(seeds):
            return [f"{self.label} · {run.path.name}" for run in self.runs]
        return [f"{self.label} · seed {seed}" for seed in seeds]


def group(runs: Sequence[Run]) -> list[Group]:
    """Group `runs` by (label, policy, ratio): `oasis`, other methods, `random`, `full`."""
    members: dict[tuple, list[Run]] = {}
    for run in runs:
        key = (run.label or run.policy, run.policy, None if run.keeps_all else run.ratio)
        members.setdefault(key, []).append(run)
    order = {"oasis": -1, "random": 1, "full": 2}
    keys = sorted(members, key=lambda key: order.get(key[1], 0))  # stable: as given otherwise
    labels = [label for label, _, _ in keys]
    groups: list[Group] = []
    others = 0
    for name, policy, ratio in keys:
        color, marker = _FIXED.get(policy), _MARKERS.get(policy)
        if color is None or color in {g.color for g in groups}:
            color = _OTHERS[others % len(_OTHERS)]
            marker = _OTHER_MARKERS[others % len(_OTHER_MARKERS)]
            others += 1
        several = labels.count(name) > 1 and ratio is not None
        groups.append(
            Group(
                label=f"{name} {100 * ratio:g} %" if several else name,
                policy=policy,
                ratio=ratio,
                runs=members[name, policy, ratio],
                color=color,
                marker=marker,
                linestyle={"random": (0, (5, 2)), "full": (0, (1, 1.5))}.get(policy, "-"),
            )
        )
    return groups
