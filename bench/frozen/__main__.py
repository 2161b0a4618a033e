"""`python -m bench.frozen GRID.yaml [seeds=32] [out=FILE.csv] [pool=NAME]`: on frozen states.

GRID.yaml is a grid of `oasis compare`: the settings of its stream, its policies with their options
and its ratios are taken, its seeds are not. `pool` names another grid's texts. Rows that FILE.csv
has already are not computed again. The tables: accuracy per answer (macro) and per text (micro),
and what `oasis` has more than each policy, paired over the seeds, with 95 % intervals and Holm's p.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from bench.frozen.tables import tables
from bench.frozen.texts import Pool, pool
from bench.frozen.training import draw, train
from bench.real_training import split
from oasis.lab.compare import Grid
from oasis.lab.compare.config import Cell
from oasis.policies import create

FIELDS = ("label", "ratio", "seed", "macro", "micro", "candidates", "selected")


@dataclass
class Options:
    """seeds: so many, from 0. out: table that is gone on with; nothing: the grid's in runs/frozen.
    pool: name of the grid whose texts are taken; nothing: this one's."""

    seeds: int = 32
    out: str = ""
    pool: str = ""


def main(arguments: list[str]) -> None:
    path, rest, options = split(arguments, Options)
    if rest:
        names = ", ".join(field.name for field in fields(Options))
        raise SystemExit(f"got {rest[0]!r}, expected GRID.yaml and key=value of {names}")
    grid = Grid.load(path, [])
    out = Path(options.out or f"runs/frozen/{grid.name}.csv")
    torch.set_num_threads(1)
    cells = {(cell.label, cell.config.ratio): cell for cell in grid.cells()}
    config = next(iter(cells.values())).config
    texts = pool(config, Path(f"runs/frozen/{options.pool or grid.name}.pt"))
    rows = read(out)
    done = {(row["label"], float(row["ratio"]), int(row["seed"])) for row in rows}
    for seed in range(options.seeds):
        missing = [key for key in cells if (*key, seed) not in done]
        if missing:
            append(out, _of_seed(texts, [cells[key] for key in missing], seed))
    labels = {label for label, _ in cells}
    tables([row for row in read(out) if row["label"] in labels])


def _of_seed(texts: Pool, cells: list[Cell], seed: int) -> list[dict]:
    stream = draw(texts, cells[0].config, seed)
    rows = []
    for cell in cells:
        config = cell.config
        policy = create(config.policy, ratio=config.ratio, seed=seed, **config.policy_options)
        outcome = train(texts, stream, config, policy, seed)
        rows.append({"label": cell.label, "ratio": config.ratio, "seed": seed, **asdict(outcome)})
    return rows


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[dict], fields: Sequence[str] = FIELDS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
