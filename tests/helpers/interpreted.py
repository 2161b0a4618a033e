"""What the tests in Triton's interpreter share."""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import METRICS

import oasis
from oasis import reference
from oasis.gram import cost

# E in one float16 plane: |error of E_t . E_s| <= 2 u |E_t| |E_s| + .., u = 2^-11 the roundoff, and
# |delta|^2 >= 2 |E|^2 where no soft cap bends the label's column (bench/NOTES-head-gram-gpu.md).
HALF_BOUND, CAPPED_BOUND = 2.0**-11, 2.0**-10


def same_metrics(got, want, rtol):
    """All that is no matrix; counts to the last."""
    for name in METRICS:
        assert_relative(getattr(got, name), getattr(want, name), rtol)
    for name in ("tokens", "correct"):
        assert torch.equal(getattr(got, name), getattr(want, name))


@pytest.fixture(autouse=True)
def by_ghost(monkeypatch):
    """What Triton does: on so few tokens "auto" may prefer another regime."""
    monkeypatch.setattr(cost, "pick", lambda *_, **__: "ghost")


def assert_like_reference(arguments, rtol, metric_rtol=None):
    got, want = oasis.head_gram(**arguments), reference.head_gram(**arguments)
    assert torch.equal(got.gram, got.gram.T), "not symmetric to the bit"
    assert_relative(got.gram.diagonal(), want.gram.diagonal(), rtol)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() <= rtol
    same_metrics(got, want, metric_rtol or rtol)
    return got
