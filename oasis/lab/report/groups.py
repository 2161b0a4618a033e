"""Runs grouped by policy and ratio, each group with its name and its look in every figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from oasis.lab.report.runs import Run
from oasis.lab.report.settings import DEFAULTS, identity

# Okabe and Ito's colours, told apart with every common colour blindness. Black is the page's ink.
# Stand-ins: html.py turns them into CSS variables, so that dark mode works.
INK, MUTED, FADED = "#010203", "#040506", "#0d0e0f"
BLUE, ORANGE, GREEN, VERMILLION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, YELLOW = "#cc79a7", "#56b4e9", "#f0e442"

_FIXED = {"oasis": BLUE, "random": ORANGE, "full": INK}
_OTHERS = (GREEN, VERMILLION, PURPLE, SKY, YELLOW)
_MARKERS = {"oasis": "o", "random": "s", "full": "D"}
_OTHER_MARKERS = ("^", "v", "P", "X", "*")


def drawn(label: str) -> str:
    """A label as a legend takes it: matplotlib leaves those out that begin with an underscore."""
    return f"\N{WORD JOINER}{label}" if label.startswith("_") else label


@dataclass
class Group:
    """Runs that differ in their seed only, all of them finished or none; these are grey. Line style
    and marker repeat what the colour says.
    """

    label: str
    policy: str
    ratio: float | None
    runs: list[Run]
    color: str
    marker: str
    linestyle: str | tuple

    @property
    def finished(self) -> bool:
        return self.runs[0].finished

    def names(self) -> list[str]:
        """One name per run: the group's, with seed or folder where there are several."""
        if len(self.runs) == 1:
            return [self.label]
        seeds = [run.seed for run in self.runs]
        if None in seeds or len(set(seeds)) < len(seeds):
            return [f"{self.label} · {run.name}" for run in self.runs]
        return [f"{self.label} · seed {seed}" for seed in seeds]


def group(runs: Sequence[Run]) -> list[Group]:
    """Group `runs` that differ in their seed alone: `oasis`, other methods, `random`, `full`; those
    that are not finished apart, so that no mean is of both.

    Where runs of one label and ratio differ in more, each group's label says in what.
    """
    members: dict[tuple, list[Run]] = {}
    for run in runs:
        own = json.dumps(identity(run), sort_keys=True, default=str)
        ratio = None if run.keeps_all else run.ratio
        key = (run.label or run.policy, run.policy, ratio, own, run.finished)
        members.setdefault(key, []).append(run)
    order = {"oasis": -1, "random": 1, "full": 2}
    # Stable: as given otherwise.
    keys = sorted(members, key=lambda key: (order.get(key[1], 0), not key[4]))
    groups: list[Group] = []
    others = 0
    for key in keys:
        name, policy, ratio, _, finished = key
        color, marker = _FIXED.get(policy), _MARKERS.get(policy)
        if not finished:
            color, marker = FADED, marker or "o"
        elif color is None or marker is None or color in {g.color for g in groups}:
            color = _OTHERS[others % len(_OTHERS)]
            marker = _OTHER_MARKERS[others % len(_OTHER_MARKERS)]
            others += 1
        ratios = {other[2] for other in keys if other[0] == name}
        alike = [members[other][0] for other in keys if other[:3] == key[:3]]
        label = f"{name} {100 * ratio:g} %" if len(ratios) > 1 and ratio is not None else name
        linestyle = {"random": (0, (5, 2)), "full": (0, (1, 1.5))}.get(policy, "-")
        label = " · ".join([label, *_difference(members[key][0], alike)])
        label += "" if finished else ", unfinished"
        groups.append(Group(label, policy, ratio, members[key], color, marker, linestyle))
    return groups


def _difference(run: Run, alike: Sequence[Run]) -> list[str]:
    """What a run differs in from the first of others of its label and ratio; [] for one alone."""
    known = [identity(other) for other in alike]
    names = sorted({name for one in known for name in one})
    differing = [n for n in names if any(one.get(n) != known[0].get(n) for one in known)]
    return [f"{name} {_shown(identity(run).get(name, DEFAULTS.get(name)))}" for name in differing]


def _shown(value: object) -> str:
    return " > ".join(map(str, value)) if isinstance(value, list) else str(value)
