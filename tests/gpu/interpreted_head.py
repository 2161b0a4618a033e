"""The Triton kernels of head_gram in Triton's interpreter, on the CPU.

Interpreting is fixed when a kernel is decorated, so test_triton_head.py runs this file in a process
of its own, with TRITON_INTERPRET=1 and OASIS_HEAD_BACKEND=triton, in tiny blocks (`INTERPRETER`).
"""

from __future__ import annotations

import math
import mmap

import pytest
import torch
import triton
import triton.language as tl
from comparing import assert_relative, cosine_scaled
from head_problems import METRICS, confident, problem
from oasis.kernels.triton import head as triton_head
from oasis.kernels.triton.blocks import ANY, INTERPRETER, TABLE
from oasis.kernels.triton.head_epilogue import LABEL_LOGIT, STATE, epilogue_kernel
from oasis.kernels.triton.head_products import lower_tile, products_kernel
from oasis.kernels.triton.head_reduce import reduce_kernel
from oasis.kernels.triton.softcap import log_chain, tanh
from peaked_heads import assert_right, peaked_head
from right_answers import head_arguments, vectors

import oasis
from oasis import reference
from oasis.gram import cost
from oasis.gram.backends import choice as head_backend

# E in one float16 plane: |error of E_t . E_s| <= 2 u |E_t| |E_s| + .., u = 2^-11 the roundoff, and
# |delta|^2 >= 2 |E|^2 where no soft cap bends the label's column (bench/NOTES-head-gram-gpu.md).
HALF_BOUND, CAPPED_BOUND = 2.0**-11, 2.0**-10


@pytest.fixture(autouse=True)
def by_ghost(monkeypatch):
    """What Triton does: on so few tokens "auto" may prefer another regime."""
    monkeypatch.setattr(cost, "pick", lambda *_: "ghost")


def assert_like_reference(arguments, rtol, metric_rtol=None):
    got, want = oasis.head_gram(**arguments), reference.head_gram(**arguments)
    assert torch.equal(got.gram, got.gram.T), "not symmetric to the bit"
    assert_relative(got.gram.diagonal(), want.gram.diagonal(), rtol)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() <= rtol
    for name in METRICS:
        assert_relative(getattr(got, name), getattr(want, name), metric_rtol or rtol)
    for name in ("tokens", "correct"):
        assert torch.equal(getattr(got, name), getattr(want, name))
    return got


def test_it_is_triton_that_runs(monkeypatch, generator):
    assert head_backend.choose(torch.device("cpu"))[0] == "triton"
    calls = []
    for name in ("epilogue", "add_products", "results"):
        method = getattr(triton_head.Visit, name)
        monkeypatch.setattr(
            triton_head.Visit,
            name,
            lambda *a, name=name, method=method: calls.append(name) or method(*a),
        )
    oasis.head_gram(**problem(generator, lengths=[2, 3], d=4, v=9, dtype=torch.float32))
    assert calls == ["epilogue", "add_products", "results"]


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
def test_vectors(case):
    got = oasis.head_gram(**head_arguments(case, torch.float32))
    want = torch.tensor(case["gram"], dtype=torch.float64)
    assert_relative(got.gram.diagonal(), want.diagonal(), 1e-6)
    assert cosine_scaled(got.gram - want, want).max() <= 1e-6
    for name in METRICS:
        assert_relative(getattr(got, name), case[name], 1e-6)
    assert got.tokens.tolist() == case["tokens"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
def test_vectors_in_half_precision(case, dtype):
    # The truth for the rounded inputs; logits are exact products of them, summed in float32.
    bound = HALF_BOUND if case["softcap"] is None else CAPPED_BOUND
    assert_like_reference(head_arguments(case, dtype), bound, 1e-5)


@pytest.mark.parametrize(
    "lengths", [[1], [0, 3, 0, 2], [17, 1, 0, 9], [1] * 17, [22, 3, 9]], ids=str
)
@pytest.mark.parametrize("v", [2, 200])
def test_ragged_shapes(lengths, v, generator):
    # 200 columns: several vocabulary blocks, the last one ragged, for all but the shortest.
    shape = {"lengths": lengths, "d": 7, "v": v, "dtype": torch.float32}
    assert_like_reference(problem(generator, **shape, masked=0.1, shuffle=True), 1e-5)


def test_several_blocks_of_everything():
    """What the shapes above rely on."""
    assert INTERPRETER.depth < INTERPRETER.vocabulary_block(17) < 137
    assert 2 * INTERPRETER.tile < 34
    assert 17 > INTERPRETER.reduce_columns > INTERPRETER.rows
    for blocks in (*TABLE.values(), ANY, INTERPRETER):
        assert blocks.columns % blocks.depth == 0  # the epilogue's zeros fill the last step
        for tokens in (1, 100, 3200, 10**6):
            assert blocks.vocabulary_block(tokens) % blocks.columns == 0
            assert tokens * blocks.vocabulary_block(tokens) <= max(
                blocks.logits, tokens * blocks.columns
            )


def test_labels_of_every_block_are_gathered(generator):
    # Distinct labels all through the vocabulary, first and last column of a block included.
    arguments = problem(generator, lengths=[11, 9], d=6, v=300, dtype=torch.float32, masked=0)
    block = INTERPRETER.vocabulary_block(20)
    arguments["labels"] = torch.randperm(300, generator=generator)[:20]
    arguments["labels"][:4] = torch.tensor([0, block - 1, block, 299])
    assert_like_reference(arguments, 1e-5)


@pytest.mark.parametrize("slope", [40.0, -40.0])
@pytest.mark.parametrize("softcap", [None, 25.0])
def test_running_maximum_over_blocks(slope, softcap, generator):
    # Logits that rise (or fall) through the vocabulary move the maximum in every block (or none).
    arguments = problem(generator, lengths=[5, 6], d=6, v=301, dtype=torch.float32)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 301)
    arguments["hidden"][:, 0] = 1.0
    arguments["softcap"] = softcap
    assert_like_reference(arguments, 2e-5)


@pytest.mark.parametrize(("softcap", "scale"), [(None, 1.0), (30.0, 4.0), (5.0, -0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_peaks_in_any_block(dtype, softcap, scale):
    arguments = peaked_head(dtype, tokens_per_sample=2, vocabulary=300)
    arguments |= {"softcap": softcap, "scale": scale}
    assert 300 // INTERPRETER.vocabulary_block(len(arguments["labels"])) >= 4
    got, want = oasis.head_gram(**arguments), reference.head_gram(**arguments)
    half = HALF_BOUND if softcap is None else CAPPED_BOUND
    assert_right(got, want, 2e-5 if dtype == torch.float32 else half, metrics=2e-5)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, CAPPED_BOUND)], ids=str
)
@pytest.mark.parametrize("softcap", [None, 3.0, 30.0])
@pytest.mark.parametrize(
    ("scale", "with_bias", "reduction"),
    [(0.125, True, "mean"), (2.5, False, "sum"), (-1.5, True, "mean")],
)
def test_head_variants(reduction, scale, with_bias, softcap, dtype, rtol, generator):
    arguments = problem(
        generator, lengths=[2, 1, 4], d=6, v=137, sharpness=2.0, dtype=dtype, shuffle=True
    )
    arguments |= {"reduction": reduction, "softcap": softcap, "scale": scale}
    if with_bias:
        arguments["bias"] = torch.randn(137, generator=generator).to(dtype)
    assert_like_reference(arguments, rtol, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_saturated_softcap(dtype, generator):
    # The likeliest columns hardly count: their chain factor is down to 4 exp(-2 x 50 / 12). Here
    # float16 entries relative to the largest p, not to the largest p f, would be lost.
    arguments = problem(generator, lengths=[7, 6], d=6, v=200, dtype=dtype)
    arguments["weight"][:, 0] = 0
    arguments["weight"][50:80, 0] = 50
    arguments["hidden"][:, 0] = 1
    arguments["labels"][arguments["labels"] != -100] %= 50
    arguments["softcap"] = 12.0
    truth, got = reference.head_gram(**arguments), oasis.head_gram(**arguments)
    bound = 1e-5 if dtype == torch.float32 else CAPPED_BOUND
    assert cosine_scaled(got.gram - truth.gram, truth.gram).max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("margin", [15.0, 40.0])
def test_confident_tokens_keep_relative_precision(margin, dtype, generator):
    arguments = confident(generator, lengths=[3, 2, 4], d=16, v=200, margin=margin, dtype=dtype)
    truth, got = reference.head_gram(**arguments), oasis.head_gram(**arguments)
    assert 0 < truth.gram.diagonal().max() < 0.1
    exact = arguments["hidden"].double() @ arguments["weight"].double().T
    logits = (arguments["hidden"].float() @ arguments["weight"].float().T).double()
    # float32 logits of this size are themselves uncertain: twice in p^2.
    bound = 1e-5 + 2 * float((logits - exact).abs().max())
    assert bound < 1e-4
    if dtype != torch.float32:
        bound += HALF_BOUND
    assert_relative(got.gram.diagonal(), truth.gram.diagonal(), bound)
    assert cosine_scaled(got.gram - truth.gram, truth.gram).max() <= bound
    assert_relative(got.loss, truth.loss, 1e-4)


def test_vocabulary_padded_with_minus_infinity(generator):
    arguments = problem(generator, lengths=[3, 4], d=6, v=300, dtype=torch.float32)
    arguments["labels"] = arguments["labels"].where(arguments["labels"] < 120, -100)
    short = arguments | {"weight": arguments["weight"][:120]}
    bias = torch.zeros(300)
    bias[120:] = -torch.inf
    want = reference.head_gram(**short)
    got = oasis.head_gram(**arguments, bias=bias)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-5
    assert_relative(got.entropy, want.entropy, 1e-5)
    # The same with the padding first: whole blocks of nothing before anything.
    arguments["weight"], bias = arguments["weight"].flip(0), bias.flip(0)
    labels = arguments["labels"]
    arguments["labels"] = torch.where(labels == -100, labels, 299 - labels)
    got = oasis.head_gram(**arguments, bias=bias)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-5
    assert_relative(got.entropy, want.entropy, 1e-5)


def test_vocabulary_of_one_has_nothing_to_learn(generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=1, masked=0, dtype=torch.float32)
    got = oasis.head_gram(**arguments)
    assert (got.gram == 0).all() and (got.loss == 0).all() and (got.entropy == 0).all()
    assert got.correct.tolist() == [2, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_sample_stays_in_its_row(bad, generator):
    arguments = problem(generator, lengths=[3, 2, 6], d=4, v=200, masked=0, dtype=torch.float32)
    clean = oasis.head_gram(**arguments)
    arguments["hidden"][4, 1] = bad
    got = oasis.head_gram(**arguments)
    others = [0, 2]
    assert torch.equal(got.gram[others][:, others], clean.gram[others][:, others])
    for name in METRICS:
        assert torch.equal(getattr(got, name)[others], getattr(clean, name)[others]), name
    assert torch.equal(got.correct[others], clean.correct[others])
    assert not torch.isfinite(got.gram[1, 1])


def test_repeats_bit_for_bit_and_masked_tokens_may_hold_anything(generator):
    arguments = problem(generator, lengths=[9, 1, 11], d=5, v=150, dtype=torch.bfloat16)
    first = oasis.head_gram(**arguments)
    arguments["hidden"][arguments["labels"] == -100] = float("nan")
    again = oasis.head_gram(**arguments)
    assert torch.equal(again.gram, first.gram)
    assert all(torch.equal(getattr(again, m), getattr(first, m)) for m in METRICS)


def unchecked(arguments):
    """The kernels on arguments that `oasis.head_gram` would refuse here, and not on a GPU."""
    order = ("hidden", "weight", "labels", "sample", "num_samples")
    return oasis.HeadGram(
        *triton_head.head_gram(*(arguments[k] for k in order), None, 0.0, 1.0, True, (0, 0))[:6]
    )


@pytest.mark.parametrize("label", [-1, -101, 200, 2**40])
def test_a_label_outside_spoils_its_sample_alone(label, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=200, masked=0, dtype=torch.float32)
    clean = unchecked(arguments)
    arguments["labels"][4] = label
    got = unchecked(arguments)
    others = torch.tensor([0, 2])
    assert torch.equal(got.gram[others][:, others], clean.gram[others][:, others])
    assert got.gram[1].isnan().all() and got.gram[:, 1].isnan().all()
    for name in METRICS:
        assert getattr(got, name)[1].isnan()
        assert torch.equal(getattr(got, name)[others], getattr(clean, name)[others]), name


@pytest.mark.parametrize("owner", [-1, 3, 2**40])
def test_a_sample_that_does_not_exist_spoils_all(owner, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=90, masked=0, dtype=torch.float32)
    arguments["sample"][4] = owner
    got = unchecked(arguments)
    assert got.gram.isnan().all() and got.loss.isnan().all()


def test_more_samples_than_a_grid_has_rows(generator, monkeypatch):
    arguments = problem(generator, lengths=[3, 0, 2, 4, 1], d=4, v=90, dtype=torch.float32)
    want = oasis.head_gram(**arguments)
    monkeypatch.setattr(triton_head, "MAX_GRID", 2)
    assert torch.equal(oasis.head_gram(**arguments).gram, want.gram)


def test_float64_is_refused(generator):
    with pytest.raises(ValueError, match=r"OASIS_HEAD_BACKEND=triton: got torch.float64, expected"):
        oasis.head_gram(**problem(generator, lengths=[2, 3], d=4, v=9))


# ---- pieces -------------------------------------------------------------------------------------


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
        HAS_BIAS=False, HAS_CAP=False, PLANES=1, BLOCK=64,
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
    products_kernel[(3,)](
        *(planes, 0, stride, products, torch.full((32,), 0.5), side, 64),
        PLANES=1, TILE=16, DEPTH=32,
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


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-3)])
@pytest.mark.parametrize("slope", [0.0, 40.0, -40.0])
def test_sketches_are_those_of_other_backends(dtype, rtol, slope, monkeypatch, generator):
    arguments = problem(generator, lengths=[9, 0, 20, 5], d=8, v=300, dtype=dtype, sharpness=2.0)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 300)
    arguments["hidden"][:, 0], arguments["labels"][[3, 12]] = 1.0, -100
    got = oasis.head_gram(**arguments, method="ghost", sketch=64, seed=3).sketch
    monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    want = oasis.head_gram(**arguments, method="ghost", sketch=64, seed=3).sketch
    assert ((got - want).norm(dim=1) <= rtol * want.norm(dim=1)).all()
    assert (got[1] == 0).all()
