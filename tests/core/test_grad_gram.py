"""grad_gram: one pass over given gradients, any layout, any floating dtype."""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from given_gradients import DTYPES, assert_gram, layouts
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import oasis
from oasis import operators, reference
from oasis.operators import cuda, launch


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 33])
@pytest.mark.parametrize("p", [1, 7, 136, 4099])
def test_ragged_shapes(n, p, dtype, generator):
    grads = torch.randn(n, p, generator=generator).to(dtype)
    assert_gram(oasis.grad_gram(grads), grads, plain=grads @ grads.T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_columns_do_not_drift(dtype, generator):
    # Equal signs: a plain float32 running sum would lose digits with the length.
    grads = torch.rand(3, 300_007, generator=generator).to(dtype)
    assert_gram(oasis.grad_gram(grads), grads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", list(layouts(torch.Generator().manual_seed(0))))
def test_every_stride_pattern(layout, dtype, generator):
    view = layouts(generator)[layout]
    # A cast of the storage keeps the strides where .to() on the view would repack them.
    storage = view.new_empty(0).set_(view.untyped_storage()).to(dtype)
    grads = storage.as_strided(view.shape, view.stride(), view.storage_offset())
    before = grads.clone()
    assert_gram(oasis.grad_gram(grads), grads)
    assert torch.equal(grads, before)


def test_more_dimensions_than_the_core_has_strides_for(generator):
    g = torch.randn(4, *[3] * 9, generator=generator)[(slice(None), *[slice(0, 2)] * 9)]
    assert torch.equal(oasis.grad_gram(g), oasis.grad_gram(g.flatten(1)))
    found = (operators.grad_sketch([x], 64, 0) for x in (g, g.flatten(1)))
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_list_of_parameters_is_the_gram_of_their_concatenation(dtype, generator):
    n = 5
    parameters = [
        torch.randn(n, 7, 9, generator=generator).transpose(1, 2),
        torch.randn(n, 13, generator=generator),
        torch.randn(n, 1, generator=generator),
        torch.randn(n, 3, 4, 5, generator=generator)[:, ::2, :, 1:],
        torch.randn(1, 8, generator=generator).expand(n, 8),
    ]
    parameters = [p.to(dtype) for p in parameters]
    whole = torch.cat([p.reshape(n, -1) for p in parameters], 1)
    got = oasis.grad_gram(parameters)
    assert_gram(got, parameters)
    assert_gram(got, whole)
    assert_gram(oasis.grad_gram(tuple(parameters)), parameters)


def test_list_may_mix_dtypes(generator):
    parameters = [torch.randn(4, 30, generator=generator).to(d) for d in DTYPES]
    truth = reference.grad_gram(parameters)
    assert cosine_scaled(oasis.grad_gram(parameters) - truth, truth).max() < 5e-7


def test_offsets_beyond_two_to_the_31():
    # Four gigabytes of address space, of which a few pages are ever touched.
    row = 2**31 + 11
    storage = torch.empty(row + 64, dtype=torch.bfloat16)
    grads = storage.as_strided((2, 64), (row, 1))
    grads[0], grads[1] = 1.0, 2.0
    assert oasis.grad_gram(grads).tolist() == [[64.0, 128.0], [128.0, 256.0]]
    wide = storage.as_strided((1, 2), (1, row))
    wide[0, 0], wide[0, 1] = 3.0, 4.0
    assert oasis.grad_gram(wide).item() == 25.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_are_exact(dtype, generator):
    grads = torch.randint(-8, 9, (6, 1000), generator=generator).to(dtype)
    assert torch.equal(oasis.grad_gram(grads), grads.double() @ grads.double().T)


def test_half_precision_does_not_overflow():
    grads = torch.full((2, 100), 60000.0, dtype=torch.float16)
    assert_relative(oasis.grad_gram(grads), torch.full((2, 2), 100 * 60000.0**2), 1e-6)


@pytest.mark.parametrize("exponent", [-50, -20, 20, 50])
def test_scaling_is_exact(exponent, generator):
    grads = torch.randn(4, 500, generator=generator)
    scaled = oasis.grad_gram(grads * 2.0**exponent)
    assert torch.equal(scaled, oasis.grad_gram(grads) * 4.0**exponent)


def test_repeats_bit_for_bit(generator):
    grads = torch.randn(16, 50_001, generator=generator)
    first = oasis.grad_gram(grads)
    assert all(torch.equal(oasis.grad_gram(grads), first) for _ in range(5))


def test_threads_do_not_change_a_bit(generator):
    grads = torch.randn(9, 100_003, generator=generator)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(oasis.grad_gram(grads))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_sample_stays_in_its_row(bad, generator):
    grads = torch.randn(5, 77, generator=generator)
    clean = oasis.grad_gram(grads)
    grads[2, 40] = bad
    got = oasis.grad_gram(grads)
    others = [0, 1, 3, 4]
    assert torch.equal(got[others][:, others], clean[others][:, others])
    assert not torch.isfinite(got[2]).any() and not torch.isfinite(got[:, 2]).any()


@given(
    n=st.integers(1, 12),
    p=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(DTYPES),
)
def test_symmetric_positive_semidefinite_and_equivariant(n, p, seed, dtype):
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(n, p, generator=g).to(dtype)
    gram = oasis.grad_gram(grads)
    assert torch.equal(gram, gram.T)
    size = float(gram.diagonal().sum())
    assert torch.linalg.eigvalsh(gram).min() >= -1e-6 * size
    order = torch.randperm(n, generator=g)
    assert_gram(oasis.grad_gram(grads[order]), grads[order])


def test_gradients_that_require_grad_are_read_not_recorded(generator):
    grads = torch.randn(3, 10, generator=generator, requires_grad=True)
    got = oasis.grad_gram(grads)
    assert not got.requires_grad
    assert_gram(got, grads)


@pytest.mark.parametrize(
    ("grads", "error", "words"),
    [
        (torch.zeros(0, 5), ValueError, ["grads", "0"]),
        (torch.zeros(7), ValueError, ["grads", "7", "N"]),
        (torch.zeros(3, 0), ValueError, ["grads", "3, 0"]),
        ([], (TypeError, ValueError), ["grads", "empty"]),
        ([torch.zeros(3, 4), torch.zeros(2, 4)], ValueError, ["grads", "3", "2"]),
        (torch.zeros(3, 4, dtype=torch.int64), TypeError, ["grads", "int64", "float32"]),
        (torch.zeros(3, 4, dtype=torch.complex64), TypeError, ["grads", "complex64"]),
        ([torch.zeros(3, 4), [1.0, 2.0, 3.0]], TypeError, ["grads", "list"]),
        (None, TypeError, ["grads", "None"]),
        ("grads", TypeError, ["grads", "str"]),
    ],
    ids=[
        *(
            "no samples",
            "no axis",
            "no numbers",
            "empty list",
            "unequal samples",
            "integers",
            "complex",
        ),
        *("not a tensor in the list", "none", "text"),
    ],
)
def test_bad_input(grads, error, words):
    with pytest.raises(error) as caught:
        oasis.grad_gram(grads)
    for word in words:
        assert word in str(caught.value), f"{word!r} missing in: {caught.value}"


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_squares_beyond_float32(scale):
    grads = torch.randn(3, 100)
    grads[1] *= scale
    truth = grads.double() @ grads.double().T
    error = (oasis.grad_gram(grads) - truth).abs() / truth.diagonal().sqrt().outer(
        truth.diagonal().sqrt()
    )
    assert error.max() < 1e-12


def test_sparse_gradients_are_refused():
    with pytest.raises(TypeError, match="grads: got layout"):
        oasis.grad_gram(torch.eye(3).to_sparse())


class Products(TorchDispatchMode):
    """(type, columns) of the operands of every product."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "mm" in func.overloadpacket.__name__:
            self.made.append((args[-1].dtype, args[-2].shape[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_without_our_kernels_a_gpu_multiplies_in_float64(precision, generator, monkeypatch):
    """What `torch.set_float32_matmul_precision` allows (TF32, bfloat16) reaches no product, and no
    more than a short run is widened at once. On CPU tensors, before the CPU's operator."""
    monkeypatch.setattr(launch, "BUILT", False)
    monkeypatch.setattr(cuda, "_RUN", 300)
    grads = [torch.randn(3, 250, generator=generator), torch.randn(3, 7, 5, generator=generator)]
    grads[1] = grads[1].transpose(1, 2)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with Products() as products:
            got = cuda.grad_gram([g.clone() for g in grads])
    finally:
        torch.set_float32_matmul_precision(before)
    wide = torch.cat([g.flatten(1).double() for g in grads], 1)
    assert_relative(got, wide @ wide.T, 1e-14, floor=float((wide * wide).sum(1).max()))
    assert products.made == [(torch.float64, columns) for columns in (100, 100, 50, 35)]
