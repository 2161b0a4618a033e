"""Which reading of docs/method.md 3 makes z most like N(0, 1), and what it selects.

`python -m bench readings CONFIG.yaml [key=value ...]` trains twice as CONFIG.yaml says (`random`,
then `oasis`), records the Gram matrix of every candidate batch, and replays on each recording
every scale x beta x warm-up x redundancy rule x draw, with the threshold fixed and steered. z does
not depend on threshold and draw, so these have tables of their own. `load=A.npz,B.npz` replays
earlier recordings instead of training.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from bench.real_training import markdown, parse, write
from bench.recording import Recording, record
from oasis import Selector
from oasis.lab.workspace import Workspace
from oasis.names import DRAWS, SCALES
from oasis.selection.presets import PRESETS, Preset

BETAS = (0.1, 0.5, 0.9, 0.99)
WARMUPS = (1, 320)  # candidates
EARLY = 20  # batches, in which the longer warm-up of batches of 16 is over
RATIOS = (0.0625, 0.125, 0.25)
TEMPERATURES = (1.0, 0.5, 0.25)
# The default reading, and the same with the paper's fixed threshold.
STEERED = PRESETS["calibrated"]
DEFAULT_RULE = f"{STEERED.siren} {STEERED.ridge:g}"
RULES = {
    "none": {"siren": "none"},
    "exact": {"siren": "auto"},
    DEFAULT_RULE: {"siren": STEERED.siren, "ridge": STEERED.ridge},
}
_SAME = ("siren", "ridge", "beta", "scale", "draw", "warmup")
FIXED = replace(PRESETS["paper"], **{name: getattr(STEERED, name) for name in _SAME})


@dataclass
class Options:
    """load: recordings to replay, separated by commas; nothing: record them now.
    policies: that train while recording. draw_seed: of the replayed draws."""

    load: str = ""
    policies: str = "random,oasis"
    draw_seed: int = 0


@dataclass
class Replay:
    """z of every scored sample [S] with its batch [S], and per batch [T] the number selected, of
    how many, their summed informativeness, and that of the most informative `ratio` of the batch.
    """

    z: np.ndarray
    batch: np.ndarray
    counts: np.ndarray
    candidates: np.ndarray
    taken: np.ndarray
    best: np.ndarray

    @property
    def ratio(self) -> float:
        return self.counts.sum() / max(self.candidates.sum(), 1)

    def captured(self, ratio: float) -> float:
        """Mean informativeness of the selected, over that of the top `ratio` of every batch."""
        mean = self.taken.sum() / max(self.counts.sum(), 1)
        return mean / (self.best.sum() / np.round(ratio * self.candidates).sum())


def replay(
    recording: Recording, ratio: float, preset: Preset = STEERED, seed: int = 0, **reading
) -> Replay:
    """What `oasis.Selector` with this preset and these overrides makes of the recorded batches."""
    selector = Selector(ratio, preset=preset, seed=seed, nonfinite="skip", **reading)
    z, batch, counts, candidates, taken, best = [], [], [], [], [], []
    for index, (gram, valid) in enumerate(zip(recording.grams, recording.valid, strict=True)):
        selection = selector.select(gram=gram, valid=valid)
        scored = selection.informativeness > 0
        z.append(selection.relative[scored])
        batch += [index] * int(scored.sum())
        counts.append(int(selection.mask.sum()))
        candidates.append(int(scored.sum()))
        raw = selection.informativeness
        taken.append(float(raw[selection.mask].sum()))
        best.append(float(raw.sort(descending=True).values[: round(ratio * candidates[-1])].sum()))
    counted = map(np.array, (batch, counts, candidates, taken, best))
    return Replay(torch.cat(z).numpy(), *counted)


def normality(z: np.ndarray) -> dict[str, float]:
    """How close values are to N(0, 1); `ks` is the Kolmogorov-Smirnov distance, in [0, 1]."""
    return {
        "mean": float(z.mean()),
        "sd": float(z.std()),
        "ks": float(stats.kstest(z, "norm").statistic),
        "beyond": float((np.abs(z) > 3).mean()),
    }


def readings(recording: Recording, seed: int = 0) -> list[dict]:
    """One row per rule x scale x beta x warm-up: z over the whole stream and over its first
    batches, and the ratios that come out."""
    rows = []
    for rule, scale, beta, warmup in itertools.product(RULES, SCALES, BETAS, WARMUPS):
        reading = {**RULES[rule], "scale": scale, "beta": beta, "warmup": warmup}
        row = {"rule": rule, "scale": scale, "beta": beta, "warmup": warmup}
        for ratio in RATIOS:
            fixed = replay(recording, ratio, FIXED, seed, **reading)
            row[f"fixed {ratio}"] = fixed.ratio
            row[f"steered {ratio}"] = replay(recording, ratio, STEERED, seed, **reading).ratio
        row |= normality(fixed.z)  # z knows nothing of the ratio
        row["early"] = normality(fixed.z[fixed.batch < EARLY])
        rows.append(row)
    return rows


def draws(recording: Recording, seed: int = 0, **reading) -> list[dict]:
    """One row per draw x temperature x ratio x threshold (fixed or steered) for one reading: counts
    per batch, and how informative the selected are. Colder than 1 with the steered one only.
    """
    rows = []
    cells = itertools.product(DRAWS, TEMPERATURES, RATIOS, (False, True))
    for draw, temperature, ratio, steered in cells:
        if temperature != 1 and not steered:
            continue
        preset = STEERED if steered else FIXED
        result = replay(
            recording, ratio, preset, seed, draw=draw, temperature=temperature, **reading
        )
        rows.append(
            {
                "draw": draw,
                "temperature": temperature,
                "ratio": ratio,
                "threshold": "steered" if steered else "fixed",
                "realised": result.ratio,
                "count_sd": float(result.counts.std()),
                "empty": float((result.counts == 0).mean()),
                "captured": result.captured(ratio),
            }
        )
    return rows


def scores(recording: Recording) -> dict[str, float]:
    """The recorded informativeness itself: what no affine reading can make normal."""
    pairs = zip(recording.grams, recording.valid, strict=True)
    raw = np.concatenate([gram.diagonal()[valid].numpy() for gram, valid in pairs])
    raw = raw[np.isfinite(raw) & (raw > 0)]
    top = np.sort(raw)[::-1][: max(1, len(raw) // 10)]
    return {
        "samples": len(raw),
        "mean": float(raw.mean()),
        "sd / mean": float(raw.std() / raw.mean()),
        "skewness": float(stats.skew(raw)),
        "skewness of log I": float(stats.skew(np.log(raw))),
        "share of the top tenth": float(top.sum() / raw.sum()),
    }


def tables(recording: Recording, rows: list[dict], counted: list[dict]) -> str:
    """All tables of one recording as Markdown."""
    where = f"trained by {recording.policy}, {len(recording)} batches"
    facts = ", ".join(f"{name} {value:.3g}" for name, value in scores(recording).items())
    text = [f"## Recording: {where}", "", f"Informativeness: {facts}.", ""]
    heads = [f"{100 * ratio:g} %" for ratio in RATIOS]
    header = ["rule", "scale", "beta", "mean z", "sd z", "KS", "beyond 3"]
    header += [f"{kind} {head}" for kind in ("fixed", "steered") for head in heads]
    body = [
        [row["rule"], row["scale"], row["beta"], *_normality(row)]
        + [f"{100 * row[f'{kind} {r}']:.2f}" for kind in ("fixed", "steered") for r in RATIOS]
        for row in sorted(rows, key=lambda row: (list(RULES).index(row["rule"]), row["ks"]))
        if row["warmup"] == min(WARMUPS)
    ]
    text.append(markdown(f"z and realised ratio in %, warm-up {min(WARMUPS)}", header, body))
    header = ["scale", "beta", "warm-up", "mean z", "sd z", "KS", "beyond 3"]
    body = [
        [row["scale"], row["beta"], row["warmup"], *_normality(row["early"])]
        for row in rows
        if row["rule"] == DEFAULT_RULE and row["beta"] in (0.1, 0.9)
    ]
    title = f"z over the first {EARLY} batches by warm-up, rule {DEFAULT_RULE}"
    text.append(markdown(title, header, body))
    header = ["draw", "temperature", "ratio", "threshold"]
    header += ["realised %", "sd of count per batch", "empty batches", "I of selected / of top k"]
    body = [
        [row["draw"], row["temperature"], f"{100 * row['ratio']:g} %", row["threshold"]]
        + [f"{100 * row['realised']:.2f}", f"{row['count_sd']:.2f}", f"{100 * row['empty']:.1f} %"]
        + [f"{row['captured']:.2f}"]
        for row in counted
    ]
    text.append(markdown("Draws, otherwise the default reading", header, body))
    return "\n".join(text)


def _normality(row: dict) -> list[str]:
    mean, sd, ks, beyond = (row[name] for name in ("mean", "sd", "ks", "beyond"))
    return [f"{mean:.3g}", f"{sd:.3g}", f"{ks:.3f}", f"{100 * beyond:.1f} %"]


def main(arguments: Sequence[str]) -> None:
    config, options = parse(arguments, Options)
    if options.load:
        recordings = [Recording.load(path) for path in options.load.split(",")]
    else:
        workspace, recordings = Workspace(config), []
        for policy in options.policies.split(","):
            recordings.append(record(config, workspace, policy))
            recordings[-1].save(Path(config.directory) / f"gram-{policy}.npz")
    data, text = {"config": config.model_dump()}, ["# Readings of the method"]
    for recording in recordings:
        rows = readings(recording, options.draw_seed)
        counted = draws(recording, options.draw_seed)
        data[recording.policy] = {"scores": scores(recording), "readings": rows, "draws": counted}
        text.append(tables(recording, rows, counted))
    write(Path(config.directory), "readings", "\n\n".join(text), data)
