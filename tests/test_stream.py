"""The stream protocol of docs/method.md, section 6."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from oasis.train.stream import MemoryStream


def stream(*lengths: int, **options) -> MemoryStream:
    tasks, number = [], 0
    for length in lengths:
        tasks.append([{"input_ids": [number + i]} for i in range(length)])
        number += length
    return MemoryStream(tasks, **options)


def ids(batch) -> list[int]:
    return [item["input_ids"][0] for item in batch]


def test_a_batch_of_16_every_8_arrivals_from_what_has_arrived():
    it = stream(80, 44)
    batches = list(it.batches())
    assert it.boundaries == [10, 15] and it.steps == len(batches) == 15
    for number, batch in enumerate(batches):
        arrived = 8 * (number + 1)
        assert len(batch) == 16 and max(ids(batch)) < arrived
        assert len(set(ids(batch))) == min(16, arrived)
        assert all(item["task"] == (item["input_ids"][0] >= 80) for item in batch)


def test_the_papers_counts():
    # 347 k arrivals -> 694 k candidates; here a tenth of that.
    it = stream(34_700)
    assert it.steps * it.batch_size == 69_392
    assert len(list(it.batches())) == it.steps


def test_a_dataloader_gets_the_same_batches():
    it = stream(40, batch_size=4, iterations_per_sample=0.3)
    loaded = list(DataLoader(it, batch_size=4, collate_fn=ids))
    assert loaded == [ids(batch) for batch in it.batches()]


def test_repeats_from_its_seed():
    first = [ids(batch) for batch in stream(64, seed=1).batches()]
    it = stream(64, seed=1)
    assert [ids(batch) for batch in it.batches()] == first == [ids(b) for b in it.batches()]
    assert [ids(batch) for batch in stream(64, seed=2).batches()] != first


def test_bounded_memory():
    for batch in stream(100, capacity=5, batch_size=4).batches():
        assert len(set(ids(batch))) == 4


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    rate=st.sampled_from([0.1, 0.125, 0.3, 1.0, 2.5]),
)
def test_boundaries_are_where_the_batches_are(lengths, rate):
    if int(sum(lengths) * rate + 1e-9) < 1:
        return
    it = stream(*lengths, iterations_per_sample=rate, batch_size=2)
    ends, seen = it.boundaries, 0
    for step, batch in enumerate(it.batches(), 1):
        seen = step
        # Every item of a batch is of a task that has begun by then.
        begun = sum(step > end for end in ends[:-1])
        assert max(item["task"] for item in batch) <= begun
    assert seen == it.steps == ends[-1] and ends == sorted(ends)


def test_refused():
    with pytest.raises(ValueError, match="tasks: expected at least one"):
        stream()
    with pytest.raises(ValueError, match="tasks: expected at least one"):
        stream(3, 0)
    with pytest.raises(ValueError, match="batch_size: got 0"):
        stream(9, batch_size=0)
    with pytest.raises(ValueError, match="iterations_per_sample: got 0"):
        stream(9, iterations_per_sample=0)
    with pytest.raises(ValueError, match="capacity: got 0"):
        stream(9, capacity=0)
    with pytest.raises(ValueError, match="7 arrivals at 0.125 iterations per sample give no batch"):
        stream(7)
