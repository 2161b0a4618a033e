"""`python -m bench.frozen.cheaper GRID.yaml [seeds=8] [out=FILE.csv] [pool=NAME]`: cheaper scores.

As `bench.frozen`, with every entry of the grid scored in several ways: "scored whole"; "as it
began", by the untrained model (`score_with` a copy of that); "rescored S", where of the candidates
that return (their text has been scored before) the share S with the highest last scores is scored
again and the rest are no candidates. The last score is what the policy made of it: adjusted for
redundancy where it does that. All train on as many samples: a policy that is shown fewer candidates
has a higher ratio of those.

Beside the accuracies: on the training that scores all, what the last scores say of the new ones
(rank correlation over the returning candidates of a batch), and of the samples that it selects the
share that would have been left out. Rows that FILE.csv has already are not computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from bench.frozen.__main__ import Options, append, read
from bench.frozen.tables import tables
from bench.frozen.texts import Pool, pool
from bench.frozen.training import Batch, Stream, draw, seen, train
from bench.real_training import split
from bench.timing import table
from oasis import Selection
from oasis.lab.compare import Grid
from oasis.lab.compare.config import Cell
from oasis.policies import Policy, Signals, create
from oasis.train.last_scores import LastScores, score_of

SHARES = (0.75, 0.5, 0.25)
WHOLE, BEGAN = "scored whole", "as it began"
WAYS = {WHOLE: None, BEGAN: None, **{f"rescored {share:g}": share for share in SHARES}}
LOST = {share: f"lost_{share:g}" for share in SHARES}
FIELDS = ("label", "ratio", "seed", "macro", "micro", "candidates", "selected", "scored")
FIELDS += ("rank", *LOST.values())


class Stale:
    """A policy with the last score of every text: what it makes of them, and what they tell.

    Args:
        policy: that selects.
        share: of the returning candidates that are shown to it; the others have no label for it.
    """

    def __init__(self, policy: Policy, share: float = 1.0) -> None:
        self.policy, self.share = policy, share
        self.name, self.needs = policy.name, policy.needs
        self.last: dict[int, float] = {}
        self.text: list[int] = []
        self.scored = 0
        self.ranks: list[float] = []  # of each batch
        self.selected, self.lost = 0, dict.fromkeys(SHARES, 0)

    def look(self, pool: Pool, adapter: Any, batch: Batch, policy: Policy) -> Signals:
        self.text = batch.text.tolist()
        signals = seen(pool, adapter, batch, self.policy)
        shown = self.shown(self.share)
        self.scored += int(shown.sum())
        return replace(signals, tokens=signals.tokens * shown)

    def shown(self, share: float) -> Tensor:
        """[N] bool: candidates that are new, or among the `share` of the others with the highest
        last scores (rounded up)."""
        return shown(self.text, self.last, share)

    def observe(self, signals: Signals) -> Selection:
        selection = self.policy.observe(signals)
        score = score_of(selection)
        assert score is not None  # of a policy that gives scores
        back = [row for row, text in enumerate(self.text) if text in self.last]
        if self.share == 1 and len(back) > 2:
            before = [self.last[self.text[row]] for row in back]
            rank = stats.spearmanr(before, score[back].tolist()).statistic
            self.ranks += [float(rank)] if rank == rank else []
        self.selected += int(selection.mask.sum())
        for share in SHARES:
            self.lost[share] += int((selection.mask & ~self.shown(share)).sum())
        told = (signals.tokens > 0).nonzero().flatten().tolist()
        self.last.update((self.text[row], float(score[row])) for row in told)
        return selection

    def state_dict(self) -> dict[str, Any]:
        return dict(self.policy.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state)


def shown(text: list[int], last: dict[int, float], share: float) -> Tensor:
    scores = LastScores(share)
    scores.scores = last
    return torch.zeros(len(text), dtype=torch.bool).index_fill(0, scores.worth(text), True)


def share_shown(stream: Stream, share: float) -> float:
    """Of all candidates: how many are shown, which depends on no score."""
    known: dict[int, float] = {}
    count = total = 0
    for batch in stream.batches:
        text = batch.text.tolist()
        count, total = count + int(shown(text, known, share).sum()), total + len(text)
        known.update(dict.fromkeys(text, 0.0))
    return count / total


def untrained(pool: Pool, adapter: Any, batch: Batch, policy: Policy) -> Signals:
    """What the policy would have been shown before training."""
    return seen(pool, lambda hidden: hidden, batch, policy)


def of_cell(texts: Pool, stream: Stream, cell: Cell, seed: int, way: str) -> dict:
    """The row of one entry and ratio, scored in one way."""
    config, share = cell.config, WAYS[way] or 1.0
    ratio = config.ratio / share_shown(stream, share)
    stale = Stale(create(config.policy, ratio=ratio, seed=seed, **config.policy_options), share)
    look = untrained if way == BEGAN else stale.look
    outcome = train(texts, stream, config, stale.policy if way == BEGAN else stale, seed, look)
    row = {"label": f"{cell.label}, {way}", "ratio": config.ratio, "seed": seed, **asdict(outcome)}
    row["scored"] = outcome.candidates if way == BEGAN else stale.scored
    if way == WHOLE:
        row["rank"] = round(fmean(stale.ranks), 4)
        lost = {name: stale.lost[share] / max(1, stale.selected) for share, name in LOST.items()}
        row |= {name: round(value, 4) for name, value in lost.items()}
    return row


def told(rows: list[dict]) -> None:
    """Prints what last scores say, by entry and ratio."""
    saved = {}
    for share in SHARES:
        own = [row for row in rows if row["label"].endswith(f", rescored {share:g}")]
        part = [1 - int(row["scored"]) / int(row["candidates"]) for row in own]
        saved[share] = f", saves {100 * fmean(part):.0f} % of the forwards" if part else ""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        if row["label"].endswith(f", {WHOLE}"):
            groups.setdefault((row["label"].rpartition(",")[0], row["ratio"]), []).append(row)
    body = []
    for (label, ratio), own in groups.items():
        rank = fmean(float(row["rank"]) for row in own)
        lost = [fmean(float(row[name]) for row in own) for name in LOST.values()]
        cells = [f"{100 * value:.0f} %" for value in lost]
        body.append([label, f"{100 * float(ratio):g} %", len(own), f"{rank:.2f}", *cells])
    header = ["policy", "ratio", "seeds", "rank correlation of last and new score"]
    header += [f"selected samples lost, {share:g} rescored{saved[share]}" for share in SHARES]
    table("What the last score says of the next", header, body)


def main(arguments: list[str]) -> None:
    path, rest, options = split(arguments, Options)
    if rest:
        raise SystemExit(f"got {rest[0]!r}, expected GRID.yaml, seeds=, out= and pool=")
    grid = Grid.load(path, [])
    out = Path(options.out or f"runs/frozen/{grid.name}.csv")
    torch.set_num_threads(1)
    cells = grid.cells()
    texts = pool(cells[0].config, Path(f"runs/frozen/{options.pool or grid.name}.pt"))
    done = {(row["label"], float(row["ratio"]), int(row["seed"])) for row in read(out)}
    for seed in range(options.seeds):
        stream = None
        for cell, way in ((cell, way) for way in WAYS for cell in cells):
            if (f"{cell.label}, {way}", cell.config.ratio, seed) not in done:
                stream = stream or draw(texts, cells[0].config, seed)
                append(out, [of_cell(texts, stream, cell, seed, way)], FIELDS)
    rows = read(out)
    told(rows)
    for label in dict.fromkeys(cell.label for cell in cells):
        own = [row for row in rows if row["label"].rpartition(",")[0] == label]
        tables(own, f"{label}, {WHOLE}")


if __name__ == "__main__":
    main(sys.argv[1:])
