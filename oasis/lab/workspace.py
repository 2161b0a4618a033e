"""What runs that are compared have in common: model, tokenizer, tasks, zero-shot accuracy."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn
from transformers import PreTrainedTokenizerBase

from oasis.lab import model as models
from oasis.lab.config import RunConfig
from oasis.lab.data import tasks as task_sources
from oasis.lab.data.encoding import Collator, encode
from oasis.lab.data.repeats import with_repeats
from oasis.lab.data.stream import MemoryStream
from oasis.lab.data.tasks import Example, Task
from oasis.lab.density import FeatureSpace
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.evaluate import choice_accuracy, pad_id
from oasis.lab.preflight import check_model, check_tasks
from oasis.lab.settings import Scope, names
from oasis.train.batch.columns import ITEM, TASK
from oasis.train.batch.subbatch import right_padded
from oasis.train.frozen.prefix import FrozenPrefix, freeze_below


class Workspace:
    """Loads what `config` names, once; `run(config, workspace=...)` takes it any number of times.

    Args:
        config (RunConfig): The settings shared by the runs.
        model, tokenizer, tasks: Given ones in place of those that `config` names (its `tasks` must
            be theirs by name).
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        model: nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        tasks: list[Task] | None = None,
    ) -> None:
        if (model is None) != (tokenizer is None):
            raise ValueError("model and tokenizer: expected both or neither")
        self.config = config
        self.device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, self.device)
        if model is None:
            check_model(config.model)
        if tasks is None:
            check_tasks(config)
        self.tasks = _load_tasks(config) if tasks is None else tasks
        if [task.name for task in self.tasks] != config.tasks:
            raise ValueError(
                f"tasks: got {[task.name for task in self.tasks]}, expected {config.tasks}"
            )
        if model is None:
            model, tokenizer = models.load(config.model, self.device, dtype)
        self.tokenizer = tokenizer
        self.base = model
        self.collator = Collator(pad_id(tokenizer), "left")
        streams = [task.train for task in self.tasks]
        if config.off_task is not None:
            streams = [*streams, _off_task(config)]
        numbers = itertools.count()
        self.encoded = [
            [
                {**encode(example, tokenizer, config.max_length), ITEM: next(numbers)}
                for example in examples
            ]
            for examples in streams
        ]
        self.prefix: FrozenPrefix | None = None
        total = models.check_layers(model, config.lora_layers)
        if config.cache_frozen and config.lora_layers < total:
            self.prefix = freeze_below(
                model,
                total - config.lora_layers,
                pad_id(tokenizer),
                config.cache_folder,
                tokenizer,
            )
        self._feature_space: FeatureSpace | None = None
        self._zero_shot: dict[str, float] = {}
        self.zero_shot_seconds = 0.0

    @property
    def items(self) -> list[dict]:
        """Encoded examples of the stream by their number (`ITEM`)."""
        return [item for task in self.encoded for item in task]

    def feature_space(self, model: nn.Module) -> FeatureSpace:
        """Features of the stream's examples; `model` is the base, adapters on it or not."""
        if self._feature_space is None:
            self._feature_space = FeatureSpace(self.items, self.collator, model, self.prefix)
        self._feature_space.model = model
        return self._feature_space

    def check(self, config: RunConfig) -> None:
        """ValueError where `config` differs from this workspace's in what they share."""
        for name in sorted(names(RunConfig, Scope.SHARED)):
            ours, theirs = getattr(self.config, name), getattr(config, name)
            if ours != theirs:
                raise ValueError(f"workspace: has {name}={ours!r}, but the run has {theirs!r}")

    def stream(self, config: RunConfig) -> MemoryStream:
        """The stream of candidate batches of a run; `config.seed` decides the order of arrival."""
        generator = random.Random(f"arrivals/{config.seed}")
        arrivals = [list(items) for items in self.encoded[: len(self.tasks)]]
        # Rows of no task carry the task -1. They come in between all along the stream.
        others = [{**item, TASK: -1} for items in self.encoded[len(arrivals) :] for item in items]
        generator.shuffle(others)
        ends = [
            len(others) * sum(map(len, arrivals[:k])) // sum(map(len, arrivals))
            for k in range(len(arrivals) + 1)
        ]
        for items, start, end in zip(arrivals, ends, ends[1:], strict=False):
            items += others[start:end]
            generator.shuffle(items)
        return MemoryStream(
            arrivals,
            batch_size=config.batch_size,
            iterations_per_sample=config.iterations_per_sample,
            capacity=config.memory,
            seed=config.seed,
        )

    @contextmanager
    def lora(self, config: RunConfig) -> Iterator[nn.Module]:
        """The model with fresh LoRA weights as `config` has them; off again afterwards."""
        model = models.attach_lora(
            self.base,
            rank=config.rank,
            alpha=config.alpha,
            layers=config.lora_layers,
            seed=config.seed,
        )
        try:
            yield model
        finally:
            model.unload()

    def accuracy(self, model: nn.Module, task: Task, held_out: int | None = None) -> float:
        """Accuracy of `model` on the first `held_out` (None: all) held-out examples of a task."""
        return choice_accuracy(
            model,
            self.tokenizer,
            task,
            self.config.eval_batch_size,
            max_length=self.config.max_length,
            held_out=held_out,
            average=self.config.accuracy,
        )

    def zero_shots(self) -> Iterator[tuple[str, float]]:
        """(task, accuracy of the untrained model), one task after another; computed once."""
        for task in self.tasks:
            if task.name not in self._zero_shot:
                start = time.perf_counter()
                self._zero_shot[task.name] = self.accuracy(
                    self.base, task, self.config.boundary_held_out
                )
                self.zero_shot_seconds += time.perf_counter() - start
            yield task.name, self._zero_shot[task.name]

    def zero_shot(self) -> dict[str, float]:
        """Accuracy of the untrained model by task."""
        return dict(self.zero_shots())

    def warm(self) -> Iterator[int]:
        """Run the frozen blocks on all training texts; yields how many are done, by the batch.

        Nothing to do without `cache_frozen`. What is not warmed here is computed when it is met.
        """
        if self.prefix is None:
            return
        # Repeats come once.
        texts = {tuple(item["input_ids"]): item for task in self.encoded for item in task}
        items = [texts[ids] for ids in sorted(texts, key=len)]
        for start in range(0, len(items), 32):
            # As the trainer has them: without a mask, nothing on the left is padding.
            batch = right_padded(self.collator(items[start : start + 32]))
            self.prefix(batch["input_ids"].to(self.device))
            yield min(start + 32, len(items))


def _load_tasks(config: RunConfig) -> list[Task]:
    tasks = []
    for name, arrivals in zip(config.tasks, config.arrivals_per_task, strict=True):
        repeats = int(arrivals * config.repeats)
        task = task_sources.load(
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


def _off_task(config: RunConfig) -> list[Example]:
    count = round(sum(config.arrivals_per_task) * config.off_task_share)
    source = task_sources.load(
        config.off_task, train=count, test=1, words=config.words, seed=config.data_seed
    )
    return source.train
