"""What runs that are compared have in common: model, tokenizer, tasks, zero-shot accuracy."""

from __future__ import annotations

import random
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from oasis.lab import model as models
from oasis.lab.config import RunConfig
from oasis.lab.data.encoded import EncodedTask
from oasis.lab.data.encoding import Collator
from oasis.lab.data.own.collate import ImageCollator
from oasis.lab.data.prepare import numbered, prepare
from oasis.lab.data.stream import MemoryStream, PassStream, Stream
from oasis.lab.data.tasks import Task
from oasis.lab.density import FeatureSpace
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.evaluate import (
    Collate,
    answers_right,
    generated_score,
    held_out_loss,
    pad_id,
)
from oasis.lab.metrics import loss_text
from oasis.lab.preflight import check_model, check_start, check_tasks
from oasis.lab.record.accuracy import accuracy_of
from oasis.lab.record.log import ADAPTER
from oasis.lab.settings import Scope, names
from oasis.train.batch.subbatch import right_padded
from oasis.train.frozen.prefix import FrozenPrefix, freeze_below


@dataclass(frozen=True)
class Measured:
    """How good a model is at a task, on its held-out examples.

    `accuracy` in [0, 1]: among the choices, or what the task's metric says of what the model
    generates; None for free text without a metric. `loss`: nats per label token; None for choices.
    `answers`: of each answer that occurs among them, how many are right and how many there are;
    None without choices.
    """

    accuracy: float | None = None
    loss: float | None = None
    answers: dict[str, tuple[int, int]] | None = None

    def __str__(self) -> str:
        parts = []
        if self.accuracy is not None:
            parts.append(f"{100 * self.accuracy:.1f} %")
        if self.loss is not None:
            parts.append(loss_text(self.loss))
        return ", ".join(parts)


class Numbered(Sequence[dict]):
    """The items with the given numbers, in that order."""

    def __init__(self, items: Sequence[dict], numbers: Sequence[int]) -> None:
        self.items, self.numbers = items, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> dict: ...

    @overload
    def __getitem__(self, index: slice) -> Numbered: ...

    def __getitem__(self, index: int | slice) -> dict | Numbered:
        if isinstance(index, slice):
            return Numbered(self.items, self.numbers[index])
        return self.items[self.numbers[index]]


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
        model: PreTrainedModel | None = None,
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
        check_start(config)
        if tasks is None:
            check_tasks(config)
        # Before the model, which takes long: data that cannot be read is said at once.
        processor = None
        if tokenizer is None:
            tokenizer, processor = models.load_reader(config.model)
            if processor is not None and config.cache_frozen:
                raise ValueError("cache_frozen: got true, expected false for a model of images")
        if tasks is None:
            prepared = prepare(config, tokenizer, processor)
        else:
            prepared = numbered(tasks, tokenizer, config.max_length)
        self.tasks, self.items, self.said = prepared.tasks, prepared.items, prepared.said
        self.arrivals, self.others, self.digest = (
            prepared.arrivals, prepared.others, prepared.digest
        )  # fmt: skip
        if config.tasks and self.names != config.tasks:
            raise ValueError(f"tasks: got {self.names}, expected {config.tasks}")
        if model is None:
            model = models.load_model(config.model, self.device, dtype)
        self.tokenizer = tokenizer
        self.base = model
        pad = pad_id(tokenizer)
        # As the trainer has batches, and as evaluation does.
        self.collator: Collate = Collator(pad, "left")
        self.judge: Collate = Collator(pad, "right")
        if processor is not None:
            self.collator = self.judge = ImageCollator(processor, pad)
        self.prefix: FrozenPrefix | None = None
        total = models.check_layers(model, config.lora_layers)
        layers = config.lora_layers
        if config.cache_frozen and layers is not None and layers < total:
            self.prefix = freeze_below(
                model,
                total - layers,
                pad,
                config.cache_folder,
                tokenizer,
            )
        self._feature_space: FeatureSpace | None = None
        self._zero_shot: dict[str, Measured] = {}
        self._scorers: dict[str, PreTrainedModel] = {}  # by name, the last one alone
        self.zero_shot_seconds = 0.0

    @property
    def names(self) -> list[str]:
        """Of the tasks, in their order."""
        return [task.name for task in self.tasks]

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

    def stream(self, config: RunConfig) -> Stream:
        """The stream of candidate batches of a run; `config.seed` decides the order of arrival."""
        generator = random.Random(f"arrivals/{config.seed}")
        arrivals = [array("q", numbers) for numbers in self.arrivals]
        # Rows of no task come in between all along the stream.
        others = array("q", self.others)
        generator.shuffle(others)
        ends = [
            len(others) * sum(map(len, arrivals[:k])) // sum(map(len, arrivals))
            for k in range(len(arrivals) + 1)
        ]
        for numbers, start, end in zip(arrivals, ends, ends[1:], strict=False):
            numbers += others[start:end]
            generator.shuffle(numbers)
        tasks = [Numbered(self.items, numbers) for numbers in arrivals]
        if config.epochs is not None:
            return PassStream(
                tasks, batch_size=config.batch_size, epochs=config.epochs, seed=config.seed
            )
        return MemoryStream(
            tasks,
            batch_size=config.batch_size,
            iterations_per_sample=config.iterations_per_sample,
            capacity=config.memory,
            seed=config.seed,
        )

    @contextmanager
    def lora(self, config: RunConfig) -> Iterator[nn.Module]:
        """The model with LoRA weights as `config` has them, fresh or those of the run that it
        starts from; off again afterwards.
        """
        model = models.attach_lora(
            self.base,
            rank=config.rank,
            alpha=config.alpha,
            layers=config.lora_layers,
            seed=config.seed,
        )
        try:
            if config.start is not None:
                models.load_lora(model, Path(config.start) / ADAPTER)
            yield model
        finally:
            model.unload()
            for module in self.base.modules():  # as transformers does it, by either of its names
                if getattr(module, "gradient_checkpointing", False):
                    vars(module)["gradient_checkpointing"] = False  # was the run's

    def scorer(self, config: RunConfig) -> PreTrainedModel | None:
        """The model beside the trained one that scores, where `config` names one."""
        name = config.score_with
        if name is None:
            return None
        if name not in self._scorers:
            found = models.load_model(name, self.device, self.base.dtype, "score_with")
            self._scorers = {name: found}
        return self._scorers[name]

    @contextmanager
    def _untrained(self) -> Iterator[nn.Module]:
        """The model before training."""
        if self.config.start is None:
            yield self.base
        else:
            with self.lora(self.config) as model:
                yield model

    def answer_counts(self) -> dict[str, dict[str, int]]:
        """How often each answer comes among the training examples, by task, where the held-out ones
        do not say it: those of packaged tasks are balanced over the answers for macro accuracy.
        """
        if self.config.accuracy != "macro" or self.digest is not None:
            return {}
        return {
            task.name: dict(Counter(item["answer"] for item in task.train))
            for task in self.tasks
            if task.choices
        }

    def measure(self, model: nn.Module, task: EncodedTask, held_out: int | None = None) -> Measured:
        """How good `model` is at the first `held_out` (None: all) held-out examples of a task: see
        `Measured`.
        """
        if task.choices and task.test:
            answers = answers_right(
                model,
                self.tokenizer,
                task,
                self.config.eval_batch_size,
                held_out=held_out,
                collate=self.judge,
            )
            return Measured(accuracy_of(answers, self.config.accuracy), answers=answers)
        items = task.test[:held_out]
        if not items:
            return Measured()
        arguments = (model, self.tokenizer, items)
        score = None
        if task.metric is not None:
            score = generated_score(*arguments, task.metric, self.config.eval_batch_size)
        batch_size = self.config.eval_batch_size
        return Measured(score, held_out_loss(*arguments, batch_size, self.judge))

    def zero_shots(self) -> Iterator[tuple[str, Measured]]:
        """(task, how good the model is at it before training), one by one; computed once."""
        for task in self.tasks:
            if task.name not in self._zero_shot:
                start = time.perf_counter()
                with self._untrained() as model:
                    self._zero_shot[task.name] = self.measure(
                        model, task, self.config.boundary_held_out
                    )
                self.zero_shot_seconds += time.perf_counter() - start
            yield task.name, self._zero_shot[task.name]

    def zero_shot(self) -> dict[str, Measured]:
        """How good the model is before training, by task."""
        return dict(self.zero_shots())

    def warm(self) -> Iterator[int]:
        """Run the frozen blocks on all training texts; yields how many are done, by the batch.

        Nothing to do without `cache_frozen`. What is not warmed here is computed when it is met.
        """
        if self.prefix is None:
            return
        # Repeats come once.
        texts = {tuple(item["input_ids"]): item for item in self.items}
        items = [texts[ids] for ids in sorted(texts, key=len)]
        for start in range(0, len(items), 32):
            # As the trainer has them: without a mask, nothing on the left is padding.
            batch = right_padded(self.collator(items[start : start + 32]))
            self.prefix(batch["input_ids"].to(self.device))
            yield min(start + 32, len(items))
