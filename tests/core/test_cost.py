"""The cost model behind method="auto": by type, regime and device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oasis.gram import cost
from oasis.gram.rates import ANY, CPU, CUDA, rates_of

MEASURED = Path(__file__).parents[2] / "bench/results/head-regimes.md"
GPU = torch.device("cuda")


def measured():
    """(T, D, V, N, regime) of the table that was measured on a CPU."""
    for line in MEASURED.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdigit():
            yield *map(int, cells[:4]), cells[7]


def test_a_cpu_takes_what_was_measured_to_be_best():
    rows = list(measured())
    assert len(rows) > 30 and {row[-1] for row in rows} == set(cost.AUTOMATIC)
    for *shape, regime in rows:
        assert cost.pick(*shape) == regime, shape


@pytest.mark.parametrize(
    ("tokens", "width"), [(4096, 896), (8192, 1536), (8192, 2048), (16384, 4096)]
)
@pytest.mark.parametrize("vocabulary", [32000, 128256, 151936])
def test_tensor_cores_make_ghost_the_cheapest(tokens, width, vocabulary):
    for dtype in cost.LOW:
        assert cost.pick(tokens, width, vocabulary, 16, dtype=dtype, device=GPU) == "ghost"


@pytest.mark.parametrize(
    ("tokens", "samples", "dtype", "regime"),
    [
        (16384, 16, torch.float64, "ghost"),
        (65536, 16, torch.float64, "instantiate"),
        (16384, 16, torch.float32, "ghost"),
        (131_072, 16, torch.float32, "instantiate"),
        (16384, 16, torch.bfloat16, "ghost"),
        (65536, 16, torch.bfloat16, "instantiate"),
        (100_000, 4096, torch.bfloat16, "sketch"),
        (100_000, 4096, torch.float32, "sketch"),
    ],
    ids=str,
)
def test_a_gpus_choice_by_type(tokens, samples, dtype, regime):
    assert cost.pick(tokens, 4096, 128_256, samples, dtype=dtype, device=GPU) == regime


def test_rates_by_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, rates in {(8, 0): CUDA[80], (10, 0): CUDA[100]}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert rates_of(GPU) is rates
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert rates_of(GPU) is ANY
    assert rates_of(torch.device("cpu")) is CPU


def test_work_counts_flops_in_the_type_they_are_done_in():
    t, d, v = 1024, 2048, 32000
    shape = {"tokens": t, "width": d, "vocabulary": v, "samples": 16, "rates": CUDA[90]}
    low = cost.work("ghost", dtype=torch.bfloat16, **shape)
    assert low.flops[torch.bfloat16] == 2 * t * v * d + t * t * d
    full = cost.work("ghost", dtype=torch.float32, **shape)
    assert set(low.flops) == {torch.bfloat16} and set(full.flops) == {torch.float32}
    # Two planes of float16 are three products of one, and twice the bytes.
    assert 1.5 * low.tiles < full.tiles <= 3 * low.tiles
    # No less than the flops of the half square.
    assert low.tiles > t * t * v / CUDA[90].half
    # Deltas are two halves; products of gradients, which are sums, stay float32.
    low = cost.work("instantiate", dtype=torch.bfloat16, **shape)
    assert low.flops == {torch.bfloat16: 8 * t * v * d, torch.float32: 16 * 17 * v * d}
    double = cost.work("instantiate", dtype=torch.float64, **shape)
    assert set(double.flops) == {torch.float64}
