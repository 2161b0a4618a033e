"""Episodic memory: what has arrived so far, to draw candidate batches from (docs/method.md, 6)."""

from __future__ import annotations

import copy
import random
from typing import Any


class EpisodicMemory:
    """Keeps arrivals and draws them uniformly.

    Unbounded by default; with a `capacity`, a reservoir (Vitter's algorithm R): at any time every
    arrival so far is stored with the same probability. Draws come from the memory's own seeded
    generator, so they depend on nothing but the arrivals and the seed.

    Args:
        capacity (int or None): Most items kept; None keeps all.
        seed (int): Seed of the generator, default 0.
    """

    def __init__(self, capacity: int | None = None, seed: int = 0) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity: got {capacity}, expected None or at least 1")
        self.capacity = capacity
        self.arrived = 0
        self._items: list[Any] = []
        self._random = random.Random(seed)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> None:
        """Store one arrival (or, in a full reservoir, maybe drop it or an older one)."""
        self.arrived += 1
        if self.capacity is None or len(self._items) < self.capacity:
            self._items.append(item)
            return
        slot = self._random.randrange(self.arrived)
        if slot < self.capacity:
            self._items[slot] = item

    def sample(self, k: int) -> list[Any]:
        """`k` stored items, uniformly, without replacement.

        Where fewer than `k` are stored each comes equally often, give or take one, so that a
        batch always has its full size. ValueError where nothing is stored or `k` < 1.
        """
        if k < 1:
            raise ValueError(f"k: got {k}, expected at least 1")
        if not self._items:
            raise ValueError("sample: the memory is empty; add an item first")
        whole, rest = divmod(k, len(self._items))
        # Of a full memory no copy is made: a million items are drawn from at every batch.
        drawn = self._items * whole + self._random.sample(self._items, rest)
        if whole:
            self._random.shuffle(drawn)
        return drawn

    def state_dict(self) -> dict:
        """Everything that later draws depend on, as plain Python values."""
        return {
            "capacity": self.capacity,
            "arrived": self.arrived,
            "items": copy.copy(self._items),
            "random": self._random.getstate(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Take a state of `state_dict`; ValueError where it is of another capacity."""
        if state["capacity"] != self.capacity:
            raise ValueError(
                f"capacity: the state has {state['capacity']}, expected {self.capacity}"
            )
        self.arrived = state["arrived"]
        self._items = list(state["items"])
        version, internal, gauss = state["random"]  # lists where the state went through JSON
        self._random.setstate((version, tuple(internal), gauss))
