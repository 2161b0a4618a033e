"""What a configuration trains on and is judged by, as token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from oasis.lab.config import RunConfig
from oasis.lab.data import tasks as packaged
from oasis.lab.data.benchmarks import read_preset
from oasis.lab.data.encoded import EncodedTask, encode_examples, encode_task
from oasis.lab.data.own.load import load
from oasis.lab.data.own.store import Items
from oasis.lab.data.repeats import with_repeats
from oasis.lab.data.tasks import Example, Task
from oasis.train.batch.columns import ITEM, TASK


@dataclass(frozen=True)
class Prepared:
    """Tasks and the items of their stream.

    `items` by number (`ITEM`), each with a "key" that says where it comes from; `arrivals` are the
    numbers of each task's training items, `others` those of no task. `said`: what there is to know
    of how rows were read. `digest` of rows of one's own: another one is other data.
    """

    tasks: list[EncodedTask]
    items: Sequence[dict[str, Any]]
    arrivals: list[Sequence[int]]
    others: Sequence[int] = ()
    said: list[str] = field(default_factory=list)
    digest: str | None = None


def prepare(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, processor: Any = None
) -> Prepared:
    """Read and encode what `config` names; `processor`: of a vision-language model."""
    if config.data is None:
        return numbered(_packaged(config), tokenizer, config.max_length, _off_task(config))
    settings = config.data
    if config.benchmark is None:
        loaded = load(settings, tokenizer, config.max_length, config.data_seed, processor)
        items = Items(loaded.store, range(loaded.store.count))
        return Prepared(
            loaded.tasks, items, loaded.arrivals, said=loaded.said, digest=loaded.digest
        )
    tasks = read_preset(
        config.benchmark,
        settings.path[0],
        config.tasks,
        train=config.arrivals_per_task,
        test=config.held_out,
        seed=config.data_seed,
    )
    prepared = numbered(tasks, tokenizer, config.max_length)
    said = [line for task in tasks for line in _other_answers(task)]
    said += [line for task in prepared.tasks for line in _cut(task, config.max_length)]
    digest = hashlib.sha256(repr(tasks).encode()).hexdigest()
    return replace(prepared, said=said, digest=digest)


def numbered(
    tasks: Sequence[Task],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    off_task: tuple[str, Sequence[Example]] = ("", ()),
) -> Prepared:
    """Tasks of short prompts, and examples of none (under a name), with their training items
    numbered in this order.
    """
    encoded = [encode_task(task, tokenizer, max_length) for task in tasks]
    name, examples = off_task
    others = encode_examples(examples, tokenizer, max_length)
    items: list[dict[str, Any]] = []
    arrivals = []
    for owner, group in [*((task.name, task.train) for task in encoded), (name, others)]:
        start = len(items)
        for place, item in enumerate(group):
            items.append({**item, ITEM: start + place, "key": f"{owner}[{place}]"})
        arrivals.append(range(start, len(items)))
    for number in arrivals[-1]:
        items[number][TASK] = -1
    return Prepared(encoded, items, arrivals[:-1], arrivals[-1])


def _other_answers(task: Task) -> list[str]:
    """How many answers of a task are none of its choices."""
    if not task.choices:
        return []
    counts = [sum(e.answer not in task.choices for e in half) for half in (task.train, task.test)]
    if not any(counts):
        return []
    return [
        f"{task.name}: {counts[0]} of {len(task.train)} rows to train on and {counts[1]} of "
        f"{len(task.test)} held out have an answer that is none of {', '.join(task.choices)}"
    ]


def _cut(task: EncodedTask, max_length: int) -> list[str]:
    full = sum(len(item["input_ids"]) >= max_length for item in (*task.train, *task.test))
    return [f"{task.name}: {full} fill {max_length} tokens, longer ones are cut"] if full else []


def _packaged(config: RunConfig) -> list[Task]:
    tasks = []
    for name, arrivals in zip(config.tasks, config.counted_arrivals, strict=True):
        repeats = int(arrivals * config.repeats)
        task = packaged.load(
            name,
            train=arrivals - repeats,
            test=config.held_out,
            words=config.words,
            seed=config.data_seed,
            balanced=config.accuracy == "macro",
        )
        train = with_repeats(task.train, repeats, f"{name}/{config.data_seed}")
        tasks.append(replace(task, train=train))
    return tasks


def _off_task(config: RunConfig) -> tuple[str, list[Example]]:
    if config.off_task is None:
        return "", []
    count = round(sum(config.counted_arrivals) * config.off_task_share)
    source = packaged.load(
        config.off_task, train=count, test=1, words=config.words, seed=config.data_seed
    )
    return config.off_task, source.train
