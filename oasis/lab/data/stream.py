"""The stream protocol: arrivals task after task, candidate batches from memory alone; or passes."""

from __future__ import annotations

import logging
import random
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, islice

from torch.utils.data import IterableDataset, get_worker_info

from oasis.train.batch.columns import TASK
from oasis.train.batch.memory import EpisodicMemory

logger = logging.getLogger(__name__)


class Stream(IterableDataset):
    """Candidate batches of the items of several tasks, which yields their items one after another.

    Every iteration over the stream starts anew from the seed, so a resumed training that skips the
    batches it has seen gets the same ones as one that never stopped.

    In a DataLoader with workers the first worker yields the stream and the others nothing, whatever
    the loader's batch size, so that it comes once and in order. More than one worker gains nothing:
    a stream has no parts that could be drawn apart, and what a worker is asked for (single items,
    or how many at a time) it does not learn.
    """

    def __init__(self, tasks: Sequence[Sequence[dict]], batch_size: int, seed: int) -> None:
        super().__init__()
        if not tasks or not all(len(task) for task in tasks):
            raise ValueError("tasks: expected at least one task, each with at least one example")
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, expected at least 1")
        self.tasks, self.batch_size, self.seed = tasks, batch_size, seed

    @property
    def boundaries(self) -> list[int]:
        """Number of batches drawn by the end of each task."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Number of batches in all."""
        return self.boundaries[-1]

    def batches(self) -> Iterator[list[dict]]:
        """The candidate batches as lists of items."""
        raise NotImplementedError

    def _item(self, task: int, place: int) -> dict:
        return {TASK: task, **self.tasks[task][place]}

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        if worker is not None and worker.id > 0:
            if worker.id == 1:  # once per loader
                logger.warning(
                    "%s: %d of %d workers have nothing to do; one is as good",
                    type(self).__name__,
                    worker.num_workers - 1,
                    worker.num_workers,
                )
            return
        for batch in self.batches():
            yield from batch


class MemoryStream(Stream):
    """Yields the items of candidate batches, one after another (docs/method.md, section 6).

    Samples arrive one by one, task after task, and go into an episodic memory. Every arrival earns
    `iterations_per_sample` of an iteration; as soon as a whole one is earned, `batch_size` items
    are drawn from the memory, without replacement. A DataLoader with the same `batch_size` gets
    exactly those batches. At the default 0.125 that is a batch of 16 every 8 arrivals, 2 candidates
    per arrival.

    Args:
        tasks (sequence of sequences of dicts): Encoded examples of each task, in the order of
            arrival. `TASK` (its index) is added where an item has none.
        batch_size (int): Candidates per batch, default 16.
        iterations_per_sample (float): Batches per arrival, default 0.125.
        capacity (int or None): Of the memory; None (default) keeps everything.
        seed (int): Seed of the memory's draws.
    """

    def __init__(
        self,
        tasks: Sequence[Sequence[dict]],
        *,
        batch_size: int = 16,
        iterations_per_sample: float = 0.125,
        capacity: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(tasks, batch_size, seed)
        if not iterations_per_sample > 0:
            raise ValueError(
                f"iterations_per_sample: got {iterations_per_sample}, expected more than 0"
            )
        # Exact arithmetic: 0.1 per arrival is a batch every 10 arrivals, without drift.
        self.rate = Fraction(iterations_per_sample).limit_denominator(1 << 20)
        self.capacity = capacity
        EpisodicMemory(capacity, seed)  # a bad capacity is refused here, not at the first batch
        if self.steps < 1:
            raise ValueError(
                f"tasks: {sum(map(len, tasks))} arrivals at {iterations_per_sample} iterations per "
                "sample give no batch; expected more of either"
            )

    @property
    def boundaries(self) -> list[int]:
        ends, arrived = [], 0
        for task in self.tasks:
            arrived += len(task)
            ends.append(int(arrived * self.rate))
        return ends

    def batches(self) -> Iterator[list[dict]]:
        # The memory keeps the numbers of arrivals, not what they are: they may be on disk.
        memory = EpisodicMemory(self.capacity, self.seed)
        starts = list(accumulate(map(len, self.tasks), initial=0))
        drawn = 0
        for number in range(starts[-1]):
            memory.add(number)
            while drawn < int(memory.arrived * self.rate):
                drawn += 1
                yield [self._arrival(found, starts) for found in memory.sample(self.batch_size)]

    def _arrival(self, number: int, starts: Sequence[int]) -> dict:
        """The item that came as the `number`-th, where tasks begin at `starts`."""
        task = bisect_right(starts, number) - 1
        return self._item(task, number - starts[task])


class PassStream(Stream):
    """Yields the items of all tasks, each task's `epochs` times in an order of the seed before the
    next task's begin. A batch may hold items of two tasks; the last one may be smaller.

    Args:
        tasks: As of `MemoryStream`.
        batch_size (int): Candidates per batch, default 16.
        epochs (int): How often each item comes, default 1.
        seed (int): Seed of the order.
    """

    def __init__(
        self,
        tasks: Sequence[Sequence[dict]],
        *,
        batch_size: int = 16,
        epochs: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(tasks, batch_size, seed)
        if epochs < 1:
            raise ValueError(f"epochs: got {epochs}, expected at least 1")
        self.epochs = epochs

    @property
    def boundaries(self) -> list[int]:
        ends = accumulate(self.epochs * len(task) for task in self.tasks)
        return [-(-end // self.batch_size) for end in ends]

    def batches(self) -> Iterator[list[dict]]:
        items = self._items()
        while batch := list(islice(items, self.batch_size)):
            yield batch

    def _items(self) -> Iterator[dict]:
        generator = random.Random(self.seed)
        for index, task in enumerate(self.tasks):
            for _ in range(self.epochs):
                places = array("q", range(len(task)))
                generator.shuffle(places)
                for place in places:
                    yield self._item(index, place)
