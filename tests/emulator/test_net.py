"""Does the net hold? Planted faults, and every barrier of the kernels left out in turn."""

from __future__ import annotations

import re

import pytest
import torch
from oris_steps import ORIS_PLAIN as PLAIN
from oris_steps import fresh_state as state
from random_grams import random_gram
from sanitized.program import Fault

from oasis.names import STATISTICS, pack
from oasis.operators.buffers import Selected

from .device import KERNELS, Device

FAULTS = [
    "none", "race_in_block", "race_between_blocks", "shared_overflow", "shared_neighbour",
    "global_overflow", "uninitialised", "divergent_barrier", "two_barriers", "no_wait",
]  # fmt: skip


def run_fault(device, name, threads=64, blocks=3):
    source = torch.arange(threads * blocks, dtype=torch.float32)
    out = torch.zeros(threads * blocks)
    integers = (FAULTS.index(name), threads, blocks)
    assert device.call("fault", integers, (), [source, out]) == "ok"
    rows = source.view(blocks, threads)
    return out.view(blocks, threads), rows + rows.roll(-1, 1)


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_a_kernel_without_fault_passes(device, tsan, order):
    for emulated in (device, tsan):
        emulated.configure(order=order)
        got, want = run_fault(emulated, "none")
        assert torch.equal(got, want)


def test_a_thousand_threads(device, tsan):
    for emulated in (device, tsan):
        got, want = run_fault(emulated, "none", threads=1024, blocks=2)
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shared_overflow", "heap-buffer-overflow|use-after-poison"),
        ("shared_neighbour", "use-after-poison"),
        ("global_overflow", "heap-buffer-overflow"),
        ("divergent_barrier", "a thread left while others wait"),
        ("two_barriers", "different barriers"),
        ("no_wait", "never waited for"),
    ],
)
def test_planted_faults_stop_the_device(device, fault, words):
    with pytest.raises(Fault, match=words):
        run_fault(device, fault)
    assert torch.equal(*run_fault(device, "none")), "and it starts again"


@pytest.mark.parametrize("fault", ["race_in_block", "race_between_blocks"])
def test_planted_races_are_found(tsan, fault):
    with pytest.raises(Fault, match="data race"):
        run_fault(tsan, fault)


def test_a_race_shows_in_the_values_too(device):
    # Without ThreadSanitizer: in one of the orders the neighbour has not written yet.
    got, want = run_fault(device, "race_in_block")
    assert not torch.equal(got[:, :-1], want[:, :-1])


def test_unwritten_shared_memory_is_nan(device):
    got, _ = run_fault(device, "uninitialised")
    assert got.isnan().all()


def barriers():
    """(file, line, text) of every barrier in the kernels."""
    found = []
    for path in sorted(KERNELS.glob("*.cuh")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"__sync(threads|warp)\(\)", line):
                found.append((path.name, number))
    return found


def exercise(device: Device, generator) -> None:
    """Small calls that reach every barrier."""
    grads = torch.randn(4, 2300, generator=generator)
    device.gram(grads)
    device.gram(grads.bfloat16())
    valid = torch.ones(12).bool()
    valid[0] = False
    for gram in (random_gram(12, 20, generator), torch.eye(12).double()):  # equal scores as well
        for method in ("exact", "residual"):
            device.select(gram, valid, *state(), method, ridge=0.01, **PLAIN)
    gram[2, 5] = torch.inf  # what is wrong empties the batch, whose floor is looked for then
    device.select(gram, valid, *state(), "residual", stop=True, **PLAIN)
    device.siren(random_gram(17, 20, generator))
    exercise_cap(device, random_gram(12, 20, generator), valid)
    exercise_mean_field(device)
    exercise_memory(device)


def exercise_cap(device: Device, gram, valid) -> None:
    """A threshold so low that everything is drawn, more than the budget of a first batch."""
    statistics, counters = state()
    statistics[STATISTICS["threshold"]] = -100.0
    steered = {**PLAIN, "gain": 0.1, "slack": 0.0045}
    device.select(gram, valid, statistics, counters, "residual", ridge=0.01, **steered)


def exercise_mean_field(device: Device) -> None:
    gram, valid = torch.eye(7).double(), torch.ones(7).bool()
    device.select(gram, valid, *state(), "mean_field", **PLAIN)


def exercise_memory(device: Device) -> None:
    rows, mask = torch.eye(3).double(), torch.ones(3).bool()
    memory, counters = torch.ones(4, 3).double(), torch.full((6,), 4)
    device.remembered(rows, rows, mask, memory, counters, 0.1)
    device.remember(rows, mask, counters, memory)


def test_there_are_barriers_to_leave_out():
    assert len({file for file, _ in barriers()}) >= 5 and len(barriers()) >= 14


@pytest.mark.parametrize(("file", "line"), barriers(), ids=str)
def test_every_barrier_is_needed(tsan, file, line, generator):
    tsan.configure(drop=(file, line))
    # Where what was read too early is an index, the crash may come first.
    with pytest.raises(Fault, match="data race|SEGV"):
        if file == "siren_mean_field.cuh":
            exercise_mean_field(tsan)
        elif file == "memory.cuh":
            exercise_memory(tsan)
        elif file == "usable.cuh":
            tsan.usable(random_gram(12, 20, generator))
        else:
            exercise(tsan, generator)


def test_with_all_barriers_nothing_is_reported(tsan, generator):
    exercise(tsan, generator)


@pytest.mark.parametrize("short", ["gradients", "gram", "adjusted", "mask"])
def test_a_buffer_that_is_too_short_is_noticed(device, short, generator):
    # The kernels themselves, handed one element less than they ask for.
    with pytest.raises(Fault, match="heap-buffer-overflow"):
        if short == "gradients":
            flat = torch.randn(3 * 50 - 1, generator=generator)
            device.gram(flat, row_stride=50, shape=(3, 50))
        elif short == "gram":
            device.gram(torch.randn(3, 50), out=torch.zeros(8, dtype=torch.float64))
        else:
            results = Selected.empty(4, torch.device("cpu"))
            results = results._replace(**{short: getattr(results, short)[:3].clone()})
            buffers = [torch.eye(4).double(), torch.ones(4).bool(), *state(), *results]
            device.call("select", (4, 1, 1, 1, 0, 0), (0.0, *pack(**PLAIN)), buffers)
