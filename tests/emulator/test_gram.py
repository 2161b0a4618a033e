"""kernels/cuda/gram.cuh on the emulated device, against float64."""

from __future__ import annotations

import pytest
import torch

from oasis import reference

from .device import TYPES as DTYPES

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def allowed(grads):
    """Largest error of an entry that the docstring of oasis.grad_gram grants."""
    wide = grads.double().abs()
    bounds = {torch.float64: 1e-14, torch.float32: 2.3e-6}
    return bounds.get(grads.dtype, 2.5e-6) * (wide @ wide.T)


def assert_gram(got, grads, added=0.0):
    want = reference.grad_gram(grads) + added
    error = (got - want).abs()
    bound = allowed(grads) + 1e-300
    worst = int((error / bound).argmax())
    assert (error <= bound).all(), f"entry {worst}: off by {error.flatten()[worst]:g}"
    assert torch.equal(got, got.T)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((dtype, n) for dtype in TYPES for n in (*range(1, 17, 5), 15, 17)),
        *((torch.float32, n) for n in range(2, 21)),
        *((torch.bfloat16, 33), (torch.float16, 64), (torch.float64, 65), (torch.float32, 130)),
    ],
    ids=str,
)
def test_every_size(device, dtype, n, generator):
    columns = 1 + n * 37 % 171 if n > 20 else 1 + n * 631 % 2300
    grads = torch.randn(n, columns, generator=generator).to(dtype)
    assert_gram(device.gram(grads), grads)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 255, 256, 257, 1024, 5000])
def test_columns_beside_the_size_of_a_stage(device, dtype, columns, generator):
    grads = torch.randn(5, columns, generator=generator).to(dtype)
    assert_gram(device.gram(grads), grads)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("offset", "gap"), [(0, 0), (1, 0), (0, 3), (5, 16), (16, 1)])
def test_rows_at_any_address(device, dtype, offset, gap, generator):
    # The buffer ends with the last row: a 16-byte load beyond it is caught.
    n, columns = 6, 301
    stride = columns + gap
    flat = torch.randn(offset + (n - 1) * stride + columns, generator=generator).to(dtype)
    grads = flat.as_strided((n, columns), (stride, 1), offset)
    got = device.gram(flat, offset=offset, row_stride=stride, shape=(n, columns))
    assert_gram(got, grads)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_offsets_beyond_32_bits(device, dtype, generator):
    n, columns, stride = 4, 300, 2**31 + 8
    grads = torch.randn(n, columns, generator=generator).to(dtype)
    got = torch.full((n, n), torch.nan, dtype=torch.float64)
    integers = (DTYPES[dtype], n, columns, stride, False, 0)
    assert device.call("gram_far", integers, (), [grads, got]) == "ok"
    assert_gram(got, grads)


def test_one_row_for_all(device, generator):
    row = torch.randn(90, generator=generator)
    got = device.gram(row, row_stride=0, shape=(4, 90))
    assert_gram(got, row.expand(4, 90))


def test_parameters_add_up(device, generator):
    first = torch.randn(7, 500, generator=generator)
    second = torch.randn(7, 33, generator=generator)
    got = device.gram(second, out=device.gram(first))
    assert_gram(got, torch.cat([first, second], 1))


@pytest.mark.parametrize("n", [9, 40])
def test_same_bits_whatever_the_schedule(device, n, generator):
    grads = torch.randn(n, 3000 if n < 16 else 900, generator=generator)
    first = device.gram(grads)
    for order in ("backward", "shuffled"):
        device.configure(order=order)
        assert torch.equal(device.gram(grads), first)


@pytest.mark.parametrize("processors", [1, 2, 7])
def test_any_number_of_processors(device, processors, generator):
    device.configure(processors=processors)
    grads = torch.randn(3, 20_000, generator=generator)
    assert_gram(device.gram(grads), grads)


def test_long_sums_keep_their_digits(device):
    # A single-precision running sum of 2^16 terms of 1 + 2^-20 would lose the second part.
    grads = torch.full((2, 1 << 16), 1 + 2.0**-20)
    want = (1 << 16) * (1 + 2.0**-20) ** 2
    assert ((device.gram(grads) / want - 1).abs() < 1e-7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_kind_of_number(device, dtype):
    # Subnormals, the largest, negative zero: each times one.
    info = torch.finfo(dtype)
    values = [info.tiny / 2, -info.tiny / 4, info.max, -info.max, 0.0, -0.0, info.eps, 3.0]
    values = torch.tensor(values, dtype=dtype)
    grads = torch.stack([torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)])
    for i, value in enumerate(values):
        grads[1] = 0
        grads[1, i] = value
        assert device.gram(grads)[0, 1] == value.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tensor_cores_that_cut_off_lose_little(device, dtype, generator):
    # All of one sign, so that what is cut off adds up; sizes differ, so that something is.
    grads = torch.rand(16, 4096, generator=generator).to(dtype)
    want = reference.grad_gram(grads)
    error = (device.gram(grads) / want - 1).abs().max()
    assert 0 < error < 5e-7, float(error)  # exact sums would mean that nothing was cut off


@pytest.mark.parametrize("spoil", [torch.nan, torch.inf])
def test_a_bad_sample_stays_alone(device, spoil, generator):
    grads = torch.randn(12, 700, generator=generator)
    grads[4, 123] = spoil
    got = device.gram(grads)
    rest = [i for i in range(12) if i != 4]
    assert not torch.isfinite(got[4, 4])
    assert_gram(got[rest][:, rest], grads[rest])


def test_threads(tsan, generator):
    for dtype, n, columns in (
        (torch.float32, 11, 2500),
        (torch.bfloat16, 16, 1500),
        (torch.float64, 3, 300),
        (torch.float32, 65, 70),
    ):
        grads = torch.randn(n, columns, generator=generator).to(dtype)
        assert_gram(tsan.gram(grads), grads)
