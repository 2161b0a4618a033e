"""The stream protocol of docs/method.md, section 6."""

from __future__ import annotations

import types

import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import IterableDatasetShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from oasis.lab.data.stream import MemoryStream
from oasis.train.batch.columns import TASK


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
        assert all(item[TASK] == (item["input_ids"][0] >= 80) for item in batch)


def test_the_papers_counts():
    # 347 k arrivals -> 694 k candidates; here a tenth of that.
    it = stream(34_700)
    assert it.steps * it.batch_size == 69_392
    assert len(list(it.batches())) == it.steps


def test_a_dataloader_gets_the_same_batches():
    it = stream(40, batch_size=4, iterations_per_sample=0.3)
    loaded = list(DataLoader(it, batch_size=4, collate_fn=ids))
    assert loaded == [ids(batch) for batch in it.batches()]


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 3, "prefetch_factor": 5},
        {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": True},
        {"num_workers": 2, "in_order": False},
    ],
    ids=str,
)
def test_workers_yield_each_batch_once_and_in_order(options):
    it = stream(20, 12, batch_size=4, iterations_per_sample=0.25)
    expected = [ids(batch) for batch in it.batches()]
    assert len(expected) == 8
    loader = DataLoader(it, batch_size=4, collate_fn=ids, **options)
    assert list(loader) == expected
    assert list(loader) == expected  # another epoch, which persistent workers stay for


@pytest.mark.parametrize(
    ("batch_size", "drop_last"),
    [(None, False), *((size, drop) for size in (1, 3, 4, 5, 64) for drop in (False, True))],
)
def test_workers_are_exact_at_any_batch_size_of_the_loader(batch_size, drop_last):
    it = stream(32, batch_size=4, iterations_per_sample=0.25)
    options = {"batch_size": batch_size, "drop_last": drop_last, "collate_fn": str}
    assert list(DataLoader(it, num_workers=2, **options)) == list(DataLoader(it, **options))


def test_workers_resume_in_the_middle():
    it = stream(32, batch_size=4, iterations_per_sample=0.25)
    loader = DataLoader(it, batch_size=4, collate_fn=ids, num_workers=2)
    rest = skip_first_batches(loader, 5)  # what the Trainer does
    assert list(rest) == [ids(batch) for batch in it.batches()][5:]


def test_workers_leave_each_process_its_share():
    it = stream(32, batch_size=4, iterations_per_sample=0.25)
    batches = [ids(batch) for batch in it.batches()]
    for rank in range(2):
        shard = IterableDatasetShard(it, batch_size=4, num_processes=2, process_index=rank)
        loader = DataLoader(shard, batch_size=4, collate_fn=ids, num_workers=2)
        assert list(loader) == batches[rank::2]


def test_idle_workers_are_said_once(monkeypatch, caplog):
    it = stream(32, batch_size=4)
    for number in range(3):
        info = types.SimpleNamespace(id=number, num_workers=3)
        monkeypatch.setattr("oasis.lab.data.stream.get_worker_info", lambda info=info: info)
        assert bool(list(it)) == (number == 0)
    assert [record.message for record in caplog.records] == [
        "MemoryStream: 2 of 3 workers have nothing to do; one is as good"
    ]


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
        assert max(item[TASK] for item in batch) <= begun
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
