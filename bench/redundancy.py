"""Which redundancy rule of docs/method.md 2 knows what is left once the picked samples are learnt.

`python -m bench redundancy CONFIG.yaml [key=value ...]` trains by `random` as CONFIG.yaml says. On
the way, at `probes` batches in each third of the training, it picks H (4 samples: at random;
greedily by I; at random with near-duplicates of them planted among the rest), takes 1 and 3 real
optimizer steps on H, recomputes I of the rest with the model, and undoes the steps. Every rule
answers the same H, by bench/redundancy_rules.py. Reported, mean +- standard error over batches:

- left: Spearman correlation of A with what is left, I';
- change: of A / I with I' / I, what redundancy alone predicts;
- net: of A / I with I' / I0, I0 after as many steps of the optimizer's momentum alone;
- twins: share of the planted near-duplicates among as many lowest A / I.

`load=PROBES.npz` reads earlier measurements, so that another rule costs no training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.probe import KINDS, STEPS, Probes, ProbingTrainer
from bench.real_training import markdown, parse, trainer_of, write
from bench.redundancy_rules import RULES, left_by
from oasis import policies
from oasis.lab.config import RunConfig
from oasis.lab.workspace import Workspace

PHASES = ("early", "middle", "late")
MEASURES = ("left", "change", "net", "twins")


@dataclass
class Options:
    """probes: batches to measure in each third of the training. load: measurements to read."""

    probes: int = 120
    load: str = ""


def phases(steps: int, probes: int) -> dict[int, int]:
    """Number of a batch -> third of the training, `probes` batches (or all) of each, spread."""
    result = {}
    thirds = np.array_split(np.arange(steps), len(PHASES))
    for phase, third in enumerate(thirds):
        spread = np.linspace(0, len(third) - 1, min(probes, len(third))).round().astype(int)
        result |= {int(third[at]): phase for at in spread}
    return result


def measure(config: RunConfig, workspace: Workspace, probes: int) -> Probes:
    """Train by `random` at the config's ratio and measure on the way."""
    if probes < 1:
        raise ValueError(f"probes: got {probes}, expected at least 1")
    policy = policies.create("random", config.ratio, config.seed)
    at = phases(workspace.stream(config).steps, probes)
    with trainer_of(
        config, workspace, policy, ProbingTrainer, phases=at, seed=config.seed
    ) as trainer:
        trainer.train()
        return trainer.probes()


def compare(probes: Probes) -> list[dict]:
    """One row per probe x number of steps x rule, with those of `MEASURES` that are defined."""
    rows = []
    for p in range(len(probes.phase)):
        gram, picked = probes.gram[p], probes.picked[p].tolist()
        rest = np.setdiff1d(np.arange(len(gram)), picked)
        before, twins = gram.diagonal()[rest], probes.twins[p][rest]
        for rule in RULES:
            left = left_by(rule, gram, picked)[rest]
            share = left / before
            for s, steps in enumerate(STEPS):
                after, drift = probes.after[p, s][rest], probes.drift[p, s][rest]
                row = {
                    "phase": PHASES[probes.phase[p]],
                    "kind": KINDS[probes.kind[p]],
                    "steps": steps,
                    "rule": rule,
                    "left": _spearman(left, after),
                    "change": _spearman(share, after / before),
                    "net": _spearman(share, after / drift),
                }
                if twins.any() and np.ptp(share) > 0:
                    lowest = np.argsort(share, kind="stable")[: twins.sum()]
                    row["twins"] = float(twins[lowest].mean())
                rows.append(row)
    return rows


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """NaN where one of them is constant (there is no order to agree with) or not finite."""
    if np.ptp(a) == 0 or np.ptp(b) == 0 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    return float(stats.spearmanr(a, b).statistic)


def mean_and_error(values: Sequence[float]) -> tuple[float, float, int]:
    """Mean, standard error of the mean, and number of the values that are not NaN."""
    known = np.array([v for v in values if not math.isnan(v)])
    if len(known) < 2:
        return (float(known[0]) if len(known) else math.nan, math.nan, len(known))
    return float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known))), len(known)


def summary(rows: list[dict]) -> list[dict]:
    """Mean and standard error per phase (and over "all") x kind x steps x rule x measure."""
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        for measure in MEASURES:
            if measure in row:
                for phase in (row["phase"], "all"):
                    key = phase, row["kind"], row["steps"], row["rule"], measure
                    groups.setdefault(key, []).append(row[measure])
    names = ("phase", "kind", "steps", "rule", "measure")
    result = []
    for key, values in groups.items():
        mean, error, count = mean_and_error(values)
        if count:
            entry = dict(zip(names, key, strict=True))
            result.append({**entry, "mean": mean, "error": error, "batches": count})
    return result


def learnt(probes: Probes) -> list[list[str]]:
    """Rows of a table: median I' / I of the picked samples, of the rest, and of idle steps."""
    rows = []
    inside = np.zeros(probes.twins.shape, dtype=bool)
    np.put_along_axis(inside, probes.picked, True, axis=1)
    raw = np.diagonal(probes.gram, axis1=1, axis2=2)
    for k, kind in enumerate(KINDS):
        for s, steps in enumerate(STEPS):
            for phase, name in enumerate(PHASES):
                at = (probes.kind == k) & (probes.phase == phase)
                if not at.any():
                    continue
                after, drift = probes.after[at, s] / raw[at], probes.drift[at, s] / raw[at]
                groups = [after[inside[at]], after[~inside[at] & ~probes.twins[at]]]
                groups += [after[probes.twins[at]], drift[~inside[at]]]
                cells = [f"{np.median(g):.2f}" if g.size else "-" for g in groups]
                rows.append([kind, steps, name, *cells])
    return rows


def tables(probes: Probes, entries: list[dict]) -> str:
    """Everything as Markdown: over all phases first, then phase by phase."""
    found = {tuple(e[k] for k in ("phase", "kind", "steps", "rule", "measure")): e for e in entries}

    def cell(*key) -> str:
        entry = found.get(key)
        return f"{entry['mean']:.2f} +- {entry['error']:.2f}" if entry else "-"

    counts = np.bincount(probes.phase[probes.kind == 0], minlength=len(PHASES))
    batches = ", ".join(f"{n} {name}" for n, name in zip(counts, PHASES, strict=True))
    text = [f"# Redundancy rules against the model\n\nMeasured batches: {batches}.\n"]
    sets = [(kind, steps) for kind in KINDS for steps in STEPS]
    heads = [f"{kind}, {steps} step{'s' * (steps > 1)}" for kind, steps in sets]
    for measure in MEASURES:
        columns = [s for s in sets if measure != "twins" or s == ("planted", STEPS[0])]
        header = ["rule", *(h for h, s in zip(heads, sets, strict=True) if s in columns)]
        body = [[rule, *(cell("all", *s, rule, measure) for s in columns)] for rule in RULES]
        text.append(markdown(f"{measure}, all phases", header, body))
    for measure in ("left", "change"):
        for kind, steps in sets:
            body = [[r, *(cell(p, kind, steps, r, measure) for p in PHASES)] for r in RULES]
            text.append(markdown(f"{measure}: H {kind}, steps {steps}", ["rule", *PHASES], body))
    header = ["H", "steps", "phase", "in H", "rest", "twins", "rest, momentum alone"]
    text.append(markdown("Median I' / I", header, learnt(probes)))
    return "\n".join(text)


def main(arguments: Sequence[str]) -> None:
    config, options = parse(arguments, Options)
    if options.load:
        probes = Probes.load(options.load)
    else:
        probes = measure(config, Workspace(config), options.probes)
        probes.save(config.directory / "probes.npz")
    entries = summary(compare(probes))
    data = {"config": config.model_dump(), "summary": entries}
    write(config.directory, "redundancy", tables(probes, entries), data)
