"""The yardstick itself, against 50-digit answers and against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from comparing import assert_relative, cosine_scaled, float64
from right_answers import head_arguments, vectors

from oasis import reference


@pytest.mark.parametrize("case", vectors("siren"), ids=lambda c: c["name"])
def test_siren_vectors(case):
    gram = reference.grad_gram(float64(case["grads"]))
    size = max(case["informativeness"])
    assert_relative(gram.diagonal(), case["informativeness"], 1e-14)
    for method, suffix in (("exact", ""), ("pairwise", "_pairwise")):
        got = reference.siren(gram, method=method)
        assert got.order.tolist() == case["order" + suffix]
        assert_relative(got.adjusted, case["adjusted" + suffix], 1e-10, floor=1e-3 * size)


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
def test_head_gram_vectors(case):
    got = reference.head_gram(**head_arguments(case))
    want = float64(case["gram"])
    assert_relative(got.gram.diagonal(), want.diagonal(), 1e-9)
    assert cosine_scaled(got.gram - want, want).max() < 1e-9
    for name in ("loss", "entropy", "el2n"):
        assert_relative(getattr(got, name), case[name], 1e-9)
    assert got.tokens.tolist() == case["tokens"]


@pytest.mark.parametrize(
    "case",
    [c for c in vectors("head_gram") if "confident" not in c["name"]],
    ids=lambda c: c["name"],
)
def test_head_gram_is_the_gram_of_autograd_gradients(case):
    arguments = head_arguments(case)
    gradients = reference.autograd_head_grads(**arguments)
    got = reference.head_gram(**arguments).gram
    want = reference.grad_gram(gradients)
    assert cosine_scaled(got - want, want).max() < 1e-12


@pytest.mark.parametrize("case", vectors("threshold"), ids=lambda c: str(c["ratio"]))
def test_threshold_vectors(case):
    assert abs(reference.threshold(case["ratio"]) - case["threshold"]) < 1e-12


def test_threshold_ends():
    assert reference.threshold(1.0) == -math.inf
    # Far out sigmoid is exponential: E[exp(Z - T)] = exp(1/2 - T).
    assert abs(reference.threshold(1e-12) - (0.5 - math.log(1e-12))) < 1e-9
    for ratio in (0.0, -0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="ratio"):
            reference.threshold(ratio)


def test_ema_vectors():
    data = vectors("ema")
    statistics = reference.Statistics()
    compared = 0
    for batch in data["batches"]:
        raw, adjusted = float64(batch["informativeness"]), float64(batch["adjusted"])
        for scale, want in batch.get("relative", {}).items():
            got = reference.relative(raw, adjusted, statistics, scale=scale)
            assert_relative(got, want, 1e-12, floor=1.0)
            compared += 1
        statistics = reference.update(raw, statistics, beta=data["beta"])
        assert_relative(statistics.mean, batch["mean_after"], 1e-12)
        assert_relative(statistics.variance, batch["variance_after"], 1e-12, floor=1e-300)
    assert compared >= 9


def test_residual_is_the_distance_to_the_span(generator):
    grads = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    got = reference.siren(reference.grad_gram(grads), method="residual")
    for step, i in enumerate(got.order.tolist()):
        span = grads[got.order[:step]].T
        nearest = torch.linalg.lstsq(span, grads[i][:, None]).solution if step else None
        distance = grads[i] if nearest is None else grads[i] - (span @ nearest)[:, 0]
        assert_relative(got.adjusted[i], distance.square().sum(), 1e-10)


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [  # kat_vectors of Random123, philox4x32 10
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, want):
    assert reference.philox(key, counter) == want


def test_uniform_is_a_window_on_one_stream():
    whole = reference.uniform(7, 0, 40)
    assert torch.equal(reference.uniform(7, 25, 15), whole[25:])
    assert not torch.equal(reference.uniform(7 + 2**32, 0, 40), whole)
    past = 2**32 - 2  # the counter's second word takes the carry
    assert torch.equal(reference.uniform(7, past, 4)[2:], reference.uniform(7, 2**32, 2))
    assert ((whole >= 0) & (whole < 1)).all()
    many = reference.uniform(3, 0, 4000)
    assert abs(many.mean() - 0.5) < 0.02 and abs(many.var() - 1 / 12) < 0.005
