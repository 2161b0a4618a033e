"""Shared fixtures: right answers, sequences of shapes, one way to compare."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from oasis import PRESETS
from oasis.names import OPTIONS, pack

settings.register_profile("oasis", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("oasis")

HERE = Path(__file__).resolve().parent

# Checks of a GPU mean nothing without one, and a row of skips would hide real ones: the file is not
# part of the suite there. OASIS_TEST_DEVICE=cpu runs it on CPU tensors (`bench/device.sh --dry`).
collect_ignore = (
    [] if torch.cuda.is_available() or os.environ.get("OASIS_TEST_DEVICE") else ["test_device.py"]
)


def vectors(name: str):
    """The right answers called ``name``, from 50-digit arithmetic.

    OASIS_VECTORS names another folder; else the copy beside these tests.
    """
    folder = Path(os.environ.get("OASIS_VECTORS") or HERE / "vectors")
    return json.loads((folder / f"{name}.json").read_text())


def float64(x) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def assert_relative(got, want, rtol: float, floor: float = 0.0) -> None:
    """Elementwise ``|got - want| <= rtol * max(|want|, floor)``; a failure shows the worst."""
    got, want = (torch.as_tensor(x, dtype=torch.float64) for x in (got, want))
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    assert torch.isfinite(got).all(), f"not finite: {got}"
    excess = (got - want).abs() - rtol * want.abs().clamp(min=floor)
    if excess.numel() and excess.max() > 0:
        at = int(excess.argmax())
        g, w = got.flatten()[at].item(), want.flatten()[at].item()
        raise AssertionError(
            f"worst at flat index {at}: got {g!r}, want {w!r}, "
            f"off by {abs(g - w):.3g}, allowed {rtol * max(abs(w), floor):.3g}"
        )


def cosine_scaled(error: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """An error in a Gram matrix in units of cosine: divided by ``sqrt(K_ii K_jj)``."""
    norm = gram.diagonal().sqrt()
    product = norm[:, None] * norm[None, :]
    return torch.where(product > 0, error.abs() / product.clamp(min=1e-300), error.abs())


def head_arguments(case, dtype=torch.float64) -> dict:
    """The keyword arguments of head_gram for one case of ``head_gram.json``."""
    return {
        "hidden": torch.tensor(case["hidden"], dtype=dtype),
        "weight": torch.tensor(case["weight"], dtype=dtype),
        "labels": torch.tensor(case["labels"]),
        "sample": torch.tensor(case["sample"]),
        "num_samples": case["n"],
        "bias": None if case["bias"] is None else torch.tensor(case["bias"], dtype=dtype),
        "softcap": case["softcap"],
        "scale": case["scale"],
        "reduction": case["reduction"],
    }


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240607)


# Options of one ORIS step: the paper's, and others of which each differs from what a forgotten one
# would be.
ORIS_PLAIN = {name: getattr(PRESETS["paper"], name, 0.25) for name in OPTIONS}  # 0.25: the ratio
ORIS_CHOICES = ORIS_PLAIN | {"scale": "within", "gain": 0.1, "slack": 0.01, "temperature": 0.5}


def oris_options(**changed) -> list[float]:
    """They, or others in their place, as the operators take them."""
    return pack(**ORIS_CHOICES | changed)
