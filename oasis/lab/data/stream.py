"""The stream protocol: arrivals task after task, candidate batches from memory alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fractions import Fraction

from torch.utils.data import IterableDataset, get_worker_info

from oasis.train.batch.columns import TASK
from oasis.train.batch.memory import EpisodicMemory

logger = logging.getLogger(__name__)


class MemoryStream(IterableDataset):
    """Yields the items of candidate batches, one after another (docs/method.md, section 6).

    Samples arrive one by one, task after task, and go into an episodic memory. Every arrival earns
    `iterations_per_sample` of an iteration; as soon as a whole one is earned, `batch_size` items
    are drawn from the memory, without replacement. A DataLoader with the same `batch_size` gets
    exactly those batches. At the default 0.125 that is a batch of 16 every 8 arrivals, 2 candidates
    per arrival.

    Every iteration over the stream starts anew from the seed, so a resumed training that skips the
    batches it has seen gets the same ones as one that never stopped.

    In a DataLoader with workers the first worker yields the stream and the others nothing, whatever
    the loader's batch size, so that it comes once and in order. More than one worker gains nothing:
    a stream has no parts that could be drawn apart, and what a worker is asked for (single items,
    or how many at a time) it is not told.

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
        super().__init__()
        if not tasks or not all(len(task) for task in tasks):
            raise ValueError("tasks: expected at least one task, each with at least one example")
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, expected at least 1")
        if not iterations_per_sample > 0:
            raise ValueError(
                f"iterations_per_sample: got {iterations_per_sample}, expected more than 0"
            )
        self.tasks = [[{TASK: index, **item} for item in task] for index, task in enumerate(tasks)]
        self.batch_size = batch_size
        # Exact arithmetic: 0.1 per arrival is a batch every 10 arrivals, without drift.
        self.rate = Fraction(iterations_per_sample).limit_denominator(1 << 20)
        self.capacity = capacity
        self.seed = seed
        EpisodicMemory(capacity, seed)  # a bad capacity is refused here, not at the first batch
        if self.steps < 1:
            raise ValueError(
                f"tasks: {sum(map(len, tasks))} arrivals at {iterations_per_sample} iterations per "
                "sample give no batch; expected more of either"
            )

    @property
    def boundaries(self) -> list[int]:
        """Number of batches drawn by the end of each task."""
        ends, arrived = [], 0
        for task in self.tasks:
            arrived += len(task)
            ends.append(int(arrived * self.rate))
        return ends

    @property
    def steps(self) -> int:
        """Number of batches in all."""
        return self.boundaries[-1]

    def batches(self) -> Iterator[list[dict]]:
        """The candidate batches as lists of `batch_size` items."""
        memory = EpisodicMemory(self.capacity, self.seed)
        drawn = 0
        for task in self.tasks:
            for item in task:
                memory.add(item)
                while drawn < int(memory.arrived * self.rate):
                    drawn += 1
                    yield memory.sample(self.batch_size)

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        if worker is not None and worker.id > 0:
            if worker.id == 1:  # once per loader
                logger.warning(
                    "MemoryStream: %d of %d workers have nothing to do; one is as good",
                    worker.num_workers - 1,
                    worker.num_workers,
                )
            return
        for batch in self.batches():
            yield from batch
