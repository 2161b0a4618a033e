"""What remembers, on a GPU: sketches of gradients, of head_gram, and what a memory leaves."""

from __future__ import annotations

import os

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import METRICS, problem

import oasis
from oasis import operators

DEVICE = torch.device(os.environ.get("OASIS_TEST_DEVICE") or "cuda")
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def there(arguments):
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((5, 40), 64), ((9, 4099), 64), ((16, 700), 512)])
def test_grad_sketch_equals_the_cpu(shape, dim, dtype, generator):
    grads = [torch.randn(*shape, generator=generator).to(dtype) for _ in range(2)]
    want = operators.grad_sketch(grads, dim, 3)
    got = operators.grad_sketch([g.to(DEVICE) for g in grads], dim, 3)
    assert got.device.type == DEVICE.type
    assert_relative(got.cpu(), want, 1e-12, floor=10.0)
    assert torch.equal(operators.grad_sketch([g.to(DEVICE) for g in grads], dim, 3), got)


@pytest.mark.parametrize("held", [0, 3, 40])
def test_a_memory_leaves_what_it_leaves_on_the_cpu(held, generator):
    n, width, room = 7, 64, 16
    grads = torch.randn(n, width, generator=generator, dtype=torch.float64)
    grads[3] = 0
    ring = torch.randn(room, width, generator=generator, dtype=torch.float64)
    counters = torch.zeros(6, dtype=torch.int64)
    valid = torch.ones(n, dtype=torch.bool)
    valid[5] = False
    operands = grads @ grads.T, grads, valid, ring, counters
    here = [x.clone() for x in operands]
    device = [x.clone().to(DEVICE) for x in operands]
    mask = torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=torch.bool)
    for _ in range(held):  # fills the ring, and goes round
        for x in (here, device):
            left, scaled = operators.remembered(*x, 0.1)
            operators.remember_(scaled, mask.to(scaled.device), x[4], x[3])
            x[4] += mask.sum().to(x[4].device)
    want, got = (operators.remembered(*x, 0.1) for x in (here, device))
    for g, w in zip(got, want, strict=True):
        assert g.device.type == DEVICE.type
        assert_relative(g.cpu(), w, 1e-9, floor=float(w.abs().max()))
    assert_relative(device[3].cpu(), here[3], 1e-9, floor=1.0)


def test_a_remembering_stream_equals_the_cpu(generator):
    here, device = (oasis.Selector(0.4, seed=5, remember=12) for _ in range(2))
    device.to(DEVICE)
    for _ in range(8):
        grads = torch.randn(6, 300, generator=generator)
        want, got = here.select(grads), device.select(grads.to(DEVICE))
        assert torch.equal(got.mask.cpu(), want.mask)
        assert_relative(got.novel.cpu(), want.novel, 1e-4, floor=1.0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("method", ["ghost", "instantiate", "sketch", "folded"])
def test_sketches_of_head_gram_equal_the_cpu(method, dtype, generator):
    arguments = problem(generator, lengths=[20, 0, 31, 5], d=24, v=1009, dtype=dtype)
    options = {"method": method, "sketch": 64, "sketch_dim": 128, "seed": 3}
    wide = arguments | {k: arguments[k].double() for k in ("hidden", "weight")}
    want, got = oasis.head_gram(**wide, **options), oasis.head_gram(**there(arguments), **options)
    rtol = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 4e-3)
    norm = want.sketch.norm(dim=1)
    assert ((got.sketch.cpu() - want.sketch).norm(dim=1) <= rtol * norm + 1e-12).all()
    assert cosine_scaled(got.gram.cpu() - want.gram, want.gram).max() <= rtol
    for name in METRICS:
        assert_relative(getattr(got, name).cpu(), getattr(want, name), 1e-3, floor=1.0)
    again = oasis.head_gram(**there(arguments), **options)
    assert torch.equal(again.sketch, got.sketch) and torch.equal(again.gram, got.gram)


def test_merged_parts_equal_the_cpu(generator):
    arguments = there(problem(generator, lengths=[20, 3], d=24, v=1009, dtype=torch.bfloat16))
    whole = oasis.head_gram(**arguments, method="ghost", sketch=64, seed=3)
    parts = [
        oasis.head_gram(
            **(arguments | {"weight": arguments["weight"][a:b]}), vocab_range=(a, b), sketch=64,
            seed=3,
        )
        for a, b in ((0, 400), (400, 1009))
    ]  # fmt: skip
    got = oasis.merge(parts)
    assert cosine_scaled(got.gram - whole.gram, whole.gram).max() < 2e-3
    assert ((got.sketch - whole.sketch).norm(dim=1) <= 4e-3 * whole.sketch.norm(dim=1)).all()
