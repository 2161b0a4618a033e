"""Episodic memory: uniform, without replacement, a fair reservoir, a state that resumes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from oasis.train.batch.memory import EpisodicMemory


def filled(count: int, **options) -> EpisodicMemory:
    memory = EpisodicMemory(**options)
    for item in range(count):
        memory.add(item)
    return memory


def test_draws_without_replacement():
    memory = filled(20)
    for _ in range(50):
        drawn = memory.sample(16)
        assert len(set(drawn)) == 16 and set(drawn) <= set(range(20))


def test_more_than_stored_uses_each_equally_often():
    counts = Counter(filled(5).sample(16))
    assert sorted(counts.values()) == [3, 3, 3, 3, 4]


def test_draws_are_uniform():
    memory = filled(10)
    counts = Counter(item for _ in range(2000) for item in memory.sample(3))
    # 600 expected each, standard deviation about 20.
    assert all(500 < counts[item] < 700 for item in range(10))


def test_reservoir_keeps_every_arrival_with_the_same_probability():
    kept = Counter(
        item for seed in range(2000) for item in filled(10, capacity=4, seed=seed)._items
    )
    # 800 expected each, standard deviation about 22.
    assert all(690 < kept[item] < 910 for item in range(10))
    assert len(filled(10, capacity=4)) == 4


@pytest.mark.parametrize("capacity", [None, 6])
def test_state_resumes(capacity):
    memory = filled(9, capacity=capacity, seed=3)
    memory.sample(4)
    state = json.loads(json.dumps(memory.state_dict()))
    other = EpisodicMemory(capacity, seed=8)
    other.load_state_dict(state)
    for item in range(9, 30):
        memory.add(item)
        other.add(item)
        assert memory.sample(3) == other.sample(3)


def test_refused():
    with pytest.raises(ValueError, match="capacity: got 0"):
        EpisodicMemory(0)
    with pytest.raises(ValueError, match="memory is empty"):
        EpisodicMemory().sample(1)
    with pytest.raises(ValueError, match="k: got 0"):
        filled(3).sample(0)
    with pytest.raises(ValueError, match="capacity: the state has None, expected 2"):
        EpisodicMemory(2).load_state_dict(filled(3).state_dict())
