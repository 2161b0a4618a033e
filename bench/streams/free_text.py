"""A stream of free text out of packaged tasks, turned round: the label asks, the text answers.

`python -m bench.streams.free_text SEED FOLDER TASK...` writes, for each task of `ASKS`, 400 rows to
FOLDER/TASK.jsonl and 160 held-out ones to FOLDER/TASK-test.jsonl, drawn anew for each seed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from oasis.lab.data.tasks import SOURCES, Example, load

ASKS = {
    "friends": "A line of {}:",
    "nouns": "What {} is:",
    "bbc": "News about {}:",
    "tweets": "A tweet by {}:",
    "newsgroups": "A post to {}:",
    "verbs": "What to do, {}:",
}
ARRIVALS, HELD_OUT, WORDS = 400, 160, 24


def rows(name: str, examples: Iterable[Example]) -> Iterable[dict[str, str]]:
    before, after = SOURCES[name].template.split("{}")
    for example in examples:
        text = example.prompt.removeprefix(before).removesuffix(after)
        yield {"prompt": ASKS[name].format(example.answer), "completion": text}


def write(path: Path, found: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in found), "utf-8")


def main(seed: int, folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        task = load(name, train=ARRIVALS, test=HELD_OUT, words=WORDS, seed=seed)
        write(folder / f"{name}.jsonl", rows(name, task.train))
        write(folder / f"{name}-test.jsonl", rows(name, task.test))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
