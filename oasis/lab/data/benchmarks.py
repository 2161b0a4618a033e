"""Folders of two continual-learning benchmarks as tasks: TRACE and Long Sequence (O-LoRA).

Prompts and answers are taken as the files have them. A `Task` with `choices` is evaluated by the
likelihood of its choices; one without is answered in free text and has a `metric`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from oasis.lab.data.json_files import kind_of, read_json, read_list
from oasis.lab.data.tasks import Example, Task
from oasis.lab.metrics import check_metric

TRACE = (  # in the order of the paper
    *("NumGLUE-ds", "ScienceQA", "Py150", "C-STANCE"),
    *("FOMC", "20Minuten", "NumGLUE-cm", "MeetingBank"),
)
LABELLED = ("C-STANCE", "FOMC")  # of those, answered by one of a few labels
MEASURED = {  # the others, each as the benchmark measures it
    "NumGLUE-ds": "exact",
    "NumGLUE-cm": "exact",
    "ScienceQA": "first_character",
    "Py150": "fuzzy",
    "20Minuten": "sari",
    "MeetingBank": "rouge_l",
}
LONG_SEQUENCE = (  # (type, dataset) in the order of the paper
    *(("TC", "DBPedia"), ("NLI", "RTE"), ("WiC", "WiC"), ("SC", "Amazon"), ("TC", "Yahoo")),
    *(("TC", "AG News"), ("NLI", "MNLI"), ("SC", "IMDB"), ("MultiRC", "MultiRC"), ("NLI", "CB")),
    *(("SC", "Yelp"), ("COPA", "COPA"), ("QQP", "QQP"), ("SC", "SST2"), ("BoolQA", "BoolQA")),
)
INSTRUCTIONS = "instruction_config.json"
PRESETS = {"trace": TRACE, "long_sequence": tuple(name for _, name in LONG_SEQUENCE)}


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
        ValueError: a file is not of the format, or has fewer examples than asked for; the library
            that computes the task's metric is missing.
    """
    if held_out not in ("test", "eval"):
        raise ValueError(f"held_out: got {held_out!r}, expected 'test' or 'eval'")
    metric = MEASURED.get(name)
    if metric is not None:
        check_metric(metric)
    splits = []
    for argument, split, count in (("train", "train", train), ("test", held_out, test)):
        path = Path(folder) / name / f"{split}.json"
        examples = [Example(*pair) for pair in _pairs(path, "prompt", "answer")]
        splits.append(_draw(examples, count, argument, path, seed))
    known = {example.answer for examples in splits for example in examples}
    choices = tuple(sorted(known)) if name in LABELLED else ()
    return Task(name, choices, *splits, metric=metric)


def read_long_sequence(
    folder: str | Path,
    kind: str,
    dataset: str,
    instruction: str | None,
    *,
    train: int | None = None,
    test: int | None = None,
    held_out: str = "test",
    seed: int = 0,
) -> Task:
    """A dataset of Long Sequence: `<folder>/<kind>/<dataset>/{train,dev,test,labels}.json`.

    The prompt is the instruction, `Option: ` and the labels, the sentence, `Answer:`, on a line
    each; without an instruction it is the sentence alone. Case, spaces and dashes in the names of
    folders don't matter ("AG News" is `agnews`). A label that is not in `labels.json` (MNLI has "-"
    where annotators disagree) is trained on as it is, and can't be right at evaluation.

    Args:
        folder: `CL_Benchmark`.
        kind: SC, TC, NLI, QQP, BoolQA, MultiRC, COPA or WiC.
        instruction: of the kind, see `read_instructions`; None where it has none (COPA).
        train, test, held_out ("test" or "dev"), seed: as of `read_trace`.

    Raises:
        FileNotFoundError, ValueError: as of `read_trace`.
    """
    if held_out not in ("test", "dev"):
        raise ValueError(f"held_out: got {held_out!r}, expected 'test' or 'dev'")
    home = _child(_child(Path(folder), kind), dataset)
    labels = read_list(home / "labels.json")
    if not all(isinstance(label, str) for label in labels):
        raise ValueError(f"{home / 'labels.json'}: expected a list of strings")
    start, end = "", ""
    if instruction is not None:
        start, end = f"{instruction.strip()}\nOption: {', '.join(labels)}\n", "\nAnswer:"
    splits = []
    for argument, split, count in (("train", "train", train), ("test", held_out, test)):
        path = home / f"{split}.json"
        pairs = _pairs(path, "sentence", "label")
        examples = [Example(f"{start}{sentence}{end}", label) for sentence, label in pairs]
        splits.append(_draw(examples, count, argument, path, seed))
    return Task(dataset, tuple(labels), *splits)


def read_preset(
    preset: str,
    folder: str | Path,
    names: Sequence[str],
    *,
    train: Sequence[int | None],
    test: int | None = None,
    seed: int = 0,
) -> list[Task]:
    """The tasks `names` of a preset below `folder`, `train[k]` examples of the k-th.

    For "long_sequence" the folder is `CL_Benchmark` or the one it is in; `instruction_config.json`
    lies in either, or in `configs` beside it.

    Raises:
        FileNotFoundError, ValueError: as of `read_trace`; a name that the preset does not have.
    """
    for name in names:
        if name not in PRESETS[preset]:
            expected = ", ".join(PRESETS[preset])
            raise ValueError(f"tasks: got {name!r}, expected some of {expected}")
    counts = [{"train": count, "test": test, "seed": seed} for count in train]
    if preset == "trace":
        return [read_trace(folder, n, **count) for n, count in zip(names, counts, strict=True)]
    home = Path(folder)
    home = home / "CL_Benchmark" if (home / "CL_Benchmark").is_dir() else home
    places = [home, home.parent, home.parent / "configs"]
    found = [p / INSTRUCTIONS for p in places if (p / INSTRUCTIONS).is_file()]
    if not found:
        raise FileNotFoundError(f"data: no {INSTRUCTIONS} in any of {', '.join(map(str, places))}")
    instructions = read_instructions(found[0])
    kinds = {name: kind for kind, name in LONG_SEQUENCE}
    return [
        read_long_sequence(home, kinds[name], name, instructions.get(kinds[name]), **count)
        for name, count in zip(names, counts, strict=True)
    ]


def read_instructions(path: str | Path) -> dict[str, str]:
    """The first instruction of each kind in `instruction_config.json`."""
    try:
        return {kind: found[0]["instruction"] for kind, found in read_json(Path(path)).items()}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f'{path}: expected {{kind: [{{"instruction_type": ..., "instruction": ...}}]}}'
        ) from error


def read_task_config(path: str | Path) -> list[tuple[str, str]]:
    """(kind, dataset) of a task configuration, `{"TC": [{"dataset name": "dbpedia", ...}]}`."""
    try:
        return [(k, d["dataset name"]) for k, found in read_json(Path(path)).items() for d in found]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f'{path}: expected {{kind: [{{"dataset name": ...}}]}}') from error


def _pairs(path: Path, question: str, answer: str) -> list[tuple[str, str]]:
    pairs = []
    for number, entry in enumerate(read_list(path)):
        if not isinstance(entry, dict):
            raise ValueError(f"{path}, entry {number}: got {kind_of(entry)}, expected an object")
        for name in (question, answer):
            if not isinstance(entry.get(name), str):
                got = f"{kind_of(entry[name])} as " if name in entry else "no "
                raise ValueError(
                    f'{path}, entry {number}: got {got}"{name}", expected texts "{question}" and '
                    f'"{answer}"'
                )
        pairs.append((entry[question], entry[answer]))
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
