"""Pieces of the Triton kernels in Triton's interpreter (see interpreted_head.py)."""

from __future__ import annotations

import math
import mmap

import torch
import triton
import triton.language as tl
from comparing import assert_relative
from oasis.kernels.triton.head_epilogue import LABEL_LOGIT, STATE, epilogue_kernel
from oasis.kernels.triton.head_products import lower_tile, products_kernel
from oasis.kernels.triton.head_reduce import reduce_kernel
from oasis.kernels.triton.softcap import log_chain, tanh


@triton.jit
def _decode(numbers, rows, columns, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    i, j = lower_tile(tl.load(numbers + at))
    tl.store(rows + at, i)
    tl.store(columns + at, j)


def test_tiles_of_the_lower_triangle():
    corners = [i * (i + 1) // 2 for i in (*range(1, 40), 4095, 4096, 46340, 65535)]
    numbers = torch.tensor([c + e for c in corners for e in (-1, 0, 1)] * 2)[:128]
    rows, columns = torch.empty_like(numbers), torch.empty_like(numbers)
    _decode[(1,)](numbers, rows, columns, COUNT=128)
    want = [int((math.isqrt(8 * p + 1) - 1) // 2) for p in numbers.tolist()]
    assert rows.tolist() == want
    assert (rows * (rows + 1) // 2 + columns).tolist() == numbers.tolist()
    assert (columns <= rows).all() and (columns >= 0).all()


@triton.jit
def _softcap(x, t, c, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(t + at, tanh(tl.load(x + at)))
    tl.store(c + at, log_chain(tl.load(x + at)))


def test_softcap_keeps_relative_precision():
    x = torch.cat([torch.logspace(-8, 2, 2047), torch.zeros(1)])
    x = torch.cat([x, -x]).float()
    t, c = torch.empty_like(x), torch.empty_like(x)
    _softcap[(1,)](x, t, c, COUNT=4096)
    assert_relative(t, x.double().tanh(), 1e-6)
    assert (c.double() - (-2 * torch.cosh(x.double()).log())).abs().max() < 1e-5


def _sparse(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of address space: only the pages that are touched take memory."""
    size = elements * dtype.itemsize
    reserve = 0x4000  # MAP_NORESERVE on Linux
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype)


def test_rows_beyond_two_to_the_31():
    """Offsets past 2^31 elements, in every kernel: 32-bit arithmetic would wrap."""
    tokens, columns, far = 3, 8, 2**30 + 64  # the third row starts beyond 2^31
    logits = _sparse(2 * far + columns, torch.float32).as_strided((tokens, columns), (far, 1))
    entries = _sparse(2 * far + 64, torch.float16).as_strided((1, tokens, 64), (0, far, 1))
    z = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(1))
    logits.copy_(z)
    labels = torch.tensor([0, 2, 2], dtype=torch.int32)
    gathers, factor = torch.empty(tokens, tokens), torch.zeros(tokens)
    state = torch.empty(STATE, tokens, dtype=torch.float64)
    bounds = torch.tensor([0, tokens], dtype=torch.int32)
    epilogue_kernel[(tokens,)](
        *(logits, far, entries, 0, far, logits, labels, labels, bounds, gathers, state, factor),
        *(0, columns, tokens, 1.0, 0.0),
        HAS_BIAS=False, HAS_CAP=False, PLANES=1, UNIT=1.0, BLOCK=64,
    )  # fmt: skip
    off = z.scatter(1, labels.long().unsqueeze(1), -torch.inf)
    want = (off - off.amax(1, keepdim=True)).exp()
    assert (entries[0, :, :columns].float() - want).abs().max() < 2.0**-11
    at_label = z.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    assert_relative(state[LABEL_LOGIT.value], at_label, 1e-6)

    # The second row of tiles starts beyond 2^31.
    stride = 2**27 + 16
    planes = _sparse(32 * stride, torch.float16).as_strided((32, 64), (stride, 1))
    e = torch.rand(32, 64, generator=torch.Generator().manual_seed(2)).half()
    planes.copy_(e)
    side = stride  # products too
    products = _sparse(32 * side, torch.float32).as_strided((32, 32), (side, 1))
    products.fill_(1.0)
    products_kernel[(3, 1)](
        *(planes, 0, stride, products, torch.full((32,), 0.5), 32, side, 64, 64),
        PLANES=1, UNIT=1.0, ROWS=16, COLUMNS=16, DEPTH=32,
    )  # fmt: skip
    want = 0.25 + e.double() @ e.double().T
    assert_relative(products.double().tril(), want.tril(), 1e-5)

    products = _sparse(2 * far + tokens, torch.float32).as_strided((tokens, tokens), (far, 1))
    inner = _sparse(2 * far + tokens, torch.float32).as_strided((tokens, tokens), (far, 1))
    values = torch.rand(2, tokens, tokens, generator=torch.Generator().manual_seed(3))
    products.copy_(values[0])
    inner.copy_(values[1])
    # No label column: what remains is the sum of products over the lower half.
    state = torch.zeros(tokens, dtype=torch.float64)
    results = _sparse(far + tokens, torch.float64)
    results[:tokens] = 1.0
    gathers = _sparse(2 * far + tokens, torch.float32)
    partial = torch.zeros(1, 1, dtype=torch.float64)
    offsets = torch.tensor([0, tokens], dtype=torch.int32)
    reduce_kernel[(1, 1)](
        *(products, inner, gathers, labels, state, results, offsets, partial),
        *(far, far, 1, 0, 0.0),
        HAS_CAP=False, ROWS=4, COLUMNS=8,
    )  # fmt: skip
    both = (values[0] * values[1]).double()
    assert_relative(partial[0, 0], both.tril().sum() + both.tril(-1).sum(), 1e-6)
