"""Folders of two continual-learning benchmarks as tasks: TRACE and Long Sequence (O-LoRA).

Prompts and answers are taken as the files have them. A `Task` with `choices` can be evaluated by
`oasis.lab.evaluate.choice_accuracy`; one without (`choices == ()`) is answered in free text, for
which `exact_match`, `normalised_match` and `first_character` are here. TRACE measures MeetingBank
by ROUGE-L, Py150 by fuzzy ratio and 20Minuten by SARI: packages of those names compute them, and
none of them is a dependency of this one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oasis.lab.data.tasks import Example, Task

TRACE = (  # in the order of the paper
    *("NumGLUE-ds", "ScienceQA", "Py150", "C-STANCE"),
    *("FOMC", "20Minuten", "NumGLUE-cm", "MeetingBank"),
)
LABELLED = ("C-STANCE", "FOMC")  # of those, answered by one of a few labels
LONG_SEQUENCE = (  # (type, dataset) in the order of the paper
    *(("TC", "DBPedia"), ("NLI", "RTE"), ("WiC", "WiC"), ("SC", "Amazon"), ("TC", "Yahoo")),
    *(("TC", "AG News"), ("NLI", "MNLI"), ("SC", "IMDB"), ("MultiRC", "MultiRC"), ("NLI", "CB")),
    *(("SC", "Yelp"), ("COPA", "COPA"), ("QQP", "QQP"), ("SC", "SST2"), ("BoolQA", "BoolQA")),
)


def read_trace(
    folder: str | Path,
    name: str,
    *,
    train: int | None = None,
    test: int | None = None,
    held_out: str = "test",
    seed: int = 0,
) -> Task:
    """Task `name` of TRACE: `<folder>/<name>/{train,eval,test}.json` of "prompt" and "answer".

    Args:
        train, test: examples to draw (by `seed`) of the training and held-out files; None: all, in
            the order of the file.
        held_out: the file to take held-out examples from, "test" or "eval".

    Raises:
        FileNotFoundError: a file is missing; the message names it and what there is.
        ValueError: a file is not of the format, or has fewer examples than asked for.
    """
    if held_out not in ("test", "eval"):
        raise ValueError(f"held_out: got {held_out!r}, expected 'test' or 'eval'")
    splits = []
    for argument, split, count in (("train", "train", train), ("test", held_out, test)):
        path = Path(folder) / name / f"{split}.json"
        examples = [Example(*pair) for pair in _pairs(path, "prompt", "answer")]
        splits.append(_draw(examples, count, argument, path, seed))
    known = {example.answer for examples in splits for example in examples}
    choices = tuple(sorted(known)) if name in LABELLED else ()
    return Task(name, choices, *splits)


def read_long_sequence(
    folder: str | Path,
    kind: str,
    dataset: str,
    instruction: str,
    *,
    train: int | None = None,
    test: int | None = None,
    held_out: str = "test",
    seed: int = 0,
) -> Task:
    """A dataset of Long Sequence: `<folder>/<kind>/<dataset>/{train,dev,test,labels}.json`.

    The prompt is the instruction, `Option: ` and the labels, the sentence, `Answer:`, on a line
    each. Case, spaces and dashes in the names of folders don't matter ("AG News" is `agnews`).

    Args:
        folder: `CL_Benchmark`.
        kind: SC, TC, NLI, QQP, BoolQA, MultiRC, COPA or WiC.
        instruction: of the kind, see `read_instructions`.
        train, test, held_out ("test" or "dev"), seed: as of `read_trace`.

    Raises:
        FileNotFoundError, ValueError: as of `read_trace`; also a label not in `labels.json`.
    """
    if held_out not in ("test", "dev"):
        raise ValueError(f"held_out: got {held_out!r}, expected 'test' or 'dev'")
    home = _child(_child(Path(folder), kind), dataset)
    labels = _load(home / "labels.json")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"{home / 'labels.json'}: expected a list of strings")
    start = f"{instruction.strip()}\nOption: {', '.join(labels)}\n"
    splits = []
    for argument, split, count in (("train", "train", train), ("test", held_out, test)):
        path = home / f"{split}.json"
        examples = []
        for number, (sentence, label) in enumerate(_pairs(path, "sentence", "label")):
            if label not in labels:
                raise ValueError(
                    f"{path}, entry {number}: got the label {label!r}, expected one of {labels}"
                )
            examples.append(Example(f"{start}{sentence}\nAnswer:", label))
        splits.append(_draw(examples, count, argument, path, seed))
    return Task(dataset, tuple(labels), *splits)


def read_instructions(path: str | Path) -> dict[str, str]:
    """The first instruction of each kind in `instruction_config.json`."""
    try:
        return {kind: found[0]["instruction"] for kind, found in _load(Path(path)).items()}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f'{path}: expected {{kind: [{{"instruction_type": ..., "instruction": ...}}]}}'
        ) from error


def read_task_config(path: str | Path) -> list[tuple[str, str]]:
    """(kind, dataset) of a task configuration, `{"TC": [{"dataset name": "dbpedia", ...}]}`."""
    try:
        return [(k, d["dataset name"]) for k, found in _load(Path(path)).items() for d in found]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f'{path}: expected {{kind: [{{"dataset name": ...}}]}}') from error


def exact_match(predictions: Sequence[str], answers: Sequence[str]) -> float:
    """Share of predictions that are the answer, but for white space around them."""
    return _share(predictions, answers, str.strip)


def normalised_match(predictions: Sequence[str], answers: Sequence[str]) -> float:
    """Share of predictions that are the answer, but for case, punctuation and white space."""
    return _share(predictions, answers, _normalise)


def first_character(predictions: Sequence[str], answers: Sequence[str]) -> float:
    """Share of predictions whose first character is the answer's (ScienceQA: A, B, ...)."""
    return _share(predictions, answers, lambda text: text.strip()[:1])


def _share(predictions: Sequence[str], answers: Sequence[str], form) -> float:
    pairs = list(zip(predictions, answers, strict=True))
    return sum(form(prediction) == form(answer) for prediction, answer in pairs) / len(pairs)


def _normalise(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]", "", text.lower()).split())


def _load(path: Path) -> Any:
    if not path.is_file():
        beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else None
        there = f"its folder has {', '.join(beside)}" if beside else "its folder is not there"
        raise FileNotFoundError(f"{path}: not found ({there if beside != [] else 'empty folder'})")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error


def _pairs(path: Path, question: str, answer: str) -> list[tuple[str, str]]:
    entries, pairs = _load(path), []
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: expected a list of entries, at least one")
    for number, entry in enumerate(entries):
        pair = (entry.get(question), entry.get(answer)) if isinstance(entry, dict) else (None,)
        if not all(isinstance(text, str) for text in pair):
            raise ValueError(f'{path}, entry {number}: expected texts "{question}" and "{answer}"')
        pairs.append(pair)
    return pairs


def _draw(
    examples: list[Example], count: int | None, argument: str, path: Path, seed: int
) -> list[Example]:
    if count is None:
        return examples
    if not 1 <= count <= len(examples):
        raise ValueError(
            f"{argument}: got {count} examples of {path}, expected 1 to {len(examples)}"
        )
    return random.Random(f"{path.parent.name}/{path.name}/{seed}").sample(examples, count)


def _child(folder: Path, name: str) -> Path:
    """The folder `name` in `folder`, whatever the case, spaces and dashes of either."""

    def plain(text: str) -> str:
        return re.sub(r"[\W_]", "", text.lower())

    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in inside:
        if plain(path.name) == plain(name):
            return path
    there = ", ".join(path.name for path in inside) or "none"
    raise FileNotFoundError(f"{folder / name}: no such folder; expected one of: {there}")
