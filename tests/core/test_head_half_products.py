"""Half types on CUDA: no product of tokens is widened, and none is less exact for it.

CUDA's products of halves with float32 sums are played on CPU tensors (`HalfProducts`).
"""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled
from half_products import HalfProducts
from head_problems import METRICS, assert_relative, confident, parts, problem

import oasis
from oasis import operators, reference
from oasis.gram import algebra
from oasis.gram import operators as gram_operators
from oasis.gram import problem as gram_problem

HALVES = (torch.bfloat16, torch.float16)
pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.aten.mm, "dtype"), reason="torch before 2.8 widens halves"
)


@pytest.fixture
def products(monkeypatch):
    """What a GPU would multiply, by torch's epilogue and several blocks."""
    monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    monkeypatch.setattr(algebra, "MIXED", "cpu")
    for name in ("gram", "partial", "merge"):  # inside an operator no mode sees what is called
        body = getattr(gram_operators, f"head_{name}_blocks")
        monkeypatch.setattr(operators, f"head_{name}", body)
    monkeypatch.setattr(gram_problem, "BLOCK_ELEMENTS", 1 << 13)
    with HalfProducts() as found:
        yield found


def by(method, arguments):
    if method == "merged":
        return oasis.merge(parts(arguments, 300, 1000))
    return oasis.head_gram(**arguments, method=method, sketch_dim=64)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("method", ["merged", "instantiate", "sketch"])
def test_tokens_are_multiplied_as_they_are(method, dtype, products, generator):
    t, d, v = 40, 16, 1500
    arguments = problem(generator, lengths=[25, 0, 15], d=d, v=v, masked=0, dtype=dtype)
    by(method, arguments)
    logits = 2 * t * v * d
    wide = products.flops.pop(torch.float32, 0)
    half = sum(products.flops.values())
    assert set(products.flops) <= set(HALVES)
    # Of the regimes' flops (docs/method.md 1.2) only products of sums are left to float32.
    if method == "merged":
        assert wide == 0 and products.flops[dtype] >= logits
        assert half >= logits + t * t * v
    elif method == "instantiate":
        assert products.flops == {dtype: 4 * logits} and wide == 0
    else:
        assert products.flops == {dtype: logits} and wide == 2 * 3 * 3 * 64


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("method", ["merged", "instantiate"])
def test_as_exact_as_float64_autograd_of_the_same_numbers(
    method, softcap, dtype, products, generator
):
    arguments = problem(generator, lengths=[40, 1, 70, 3], d=24, v=2000, dtype=dtype, shuffle=True)
    arguments |= {"softcap": softcap, "scale": 1.5}
    got, want = by(method, arguments), reference.head_gram(**arguments)
    error = cosine_scaled(got.gram - want.gram, want.gram).max()
    # One plane of float16 where E meets E, as in the Triton kernels; elsewhere two halves.
    bound = 2.0**-11 if method == "merged" else 2.0**-17
    assert error <= (bound if softcap is None else 2 * bound), float(error)
    for name in METRICS:
        assert_relative(getattr(got, name), getattr(want, name), 1e-5)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("method", ["merged", "instantiate"])
def test_confident_tokens_keep_relative_precision(method, dtype, products, generator):
    arguments = confident(generator, lengths=[3, 2, 4], d=16, v=1100, margin=40.0, dtype=dtype)
    got, want = by(method, arguments), reference.head_gram(**arguments)
    assert_relative(got.gram.diagonal(), want.gram.diagonal(), 2.0**-11 + 2e-5)


@pytest.mark.parametrize("method", ["ghost", "instantiate", "sketch"])
def test_the_sketch_of_each_gradient_is_the_same(method, products, generator, monkeypatch):
    arguments = problem(generator, lengths=[9, 0, 20], d=8, v=1500, dtype=torch.bfloat16)
    got = oasis.head_gram(**arguments, method=method, sketch=64).sketch
    monkeypatch.setattr(algebra, "MIXED", "cuda")  # widened
    want = oasis.head_gram(**arguments, method=method, sketch=64).sketch
    assert ((got - want).norm(dim=1) <= 1e-5 * want.norm(dim=1)).all()


def test_where_torch_cannot_halves_are_widened(products, generator, monkeypatch):
    arguments = problem(generator, lengths=[9, 4], d=8, v=1500, dtype=torch.float16)
    # float16 sums allowed: cuBLAS then has no float32 result.
    monkeypatch.setattr(algebra, "_float16_sums", lambda: True)
    got, want = by("instantiate", arguments), reference.head_gram(**arguments)
    assert set(products.flops) == {torch.float32}
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-6
    products.flops.clear()
    arguments |= {k: arguments[k].bfloat16() for k in ("hidden", "weight")}
    by("instantiate", arguments)
    assert set(products.flops) == {torch.bfloat16}
