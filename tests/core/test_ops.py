"""The operators as torch sees them: schema, mutation, fakes, tracing."""

from __future__ import annotations

import pytest
import torch
from head_operands import head_operands
from oris_steps import oris_options
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import oasis
from oasis import doctor
from oasis.names import DRAWS, RULES

TESTS = (
    "test_schema",
    "test_faketensor",
    "test_autograd_registration",
    "test_aot_dispatch_dynamic",
)


def double(g, *shape):
    return torch.rand(*shape, generator=g, dtype=torch.float64)


def oris_arguments(g, draw="bernoulli"):
    selector = oasis.Selector(seed=3)
    valid = torch.tensor([True, True, False, True, True])
    options = oris_options(draw=draw)
    return (
        *(double(g, 5), double(g, 5), valid, selector.statistics.clone()),
        *(selector.counters.clone(), options),
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize("n", [1, 5])
def test_grad_gram(dtype, n, generator):
    whole = torch.randn(n, 12, generator=generator).to(dtype)
    for grads in ([whole], [whole, whole[:, ::3], whole[:1, :4].expand(n, 4)]):
        opcheck(torch.ops.oasis.grad_gram.default, (grads,), test_utils=TESTS)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [1, 6])
def test_siren(method, n, generator):
    grads = torch.randn(n, 9, generator=generator, dtype=torch.float64)
    valid = torch.ones(n, dtype=torch.bool)
    valid[n // 2] = n == 1
    floor = torch.tensor(-torch.inf, dtype=torch.float64)
    arguments = (grads @ grads.T, valid, floor, method, 0.0)
    opcheck(torch.ops.oasis.siren.default, arguments, test_utils=TESTS)


@pytest.mark.parametrize("draw", DRAWS)
def test_oris(draw, generator):
    arguments = oris_arguments(generator, draw)
    opcheck(torch.ops.oasis.oris_.default, arguments, test_utils=TESTS)
    stop = arguments[:1] + arguments[2:]
    opcheck(torch.ops.oasis.oris_stop.default, stop, test_utils=TESTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("method", "sketch"), [("ghost", 0), ("instantiate", 17), ("sketch", 16)])
def test_head_gram(dtype, with_bias, masked, method, sketch, generator):
    arguments = head_operands(dtype, with_bias, masked, generator)
    options = (method, 32, 1, sketch)
    opcheck(torch.ops.oasis.head_gram.default, (*arguments, *options), test_utils=TESTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_head_partial_and_merge(dtype, masked, generator):
    arguments = head_operands(dtype, True, masked, generator)
    opcheck(torch.ops.oasis.head_partial.default, (*arguments, 7, 1, 16), test_utils=TESTS)
    *sums, labels, tokens = torch.ops.oasis.head_partial(*arguments, 0, 1, 16)
    products, inner, gathers, token, deltas, hidden = sums
    parts = [products] * 2, [gathers] * 2, [token] * 2, [deltas] * 2
    options = (inner, hidden, labels, tokens, 5.0, 1.0, True, 1)
    opcheck(torch.ops.oasis.head_merge.default, (*parts, *options), test_utils=TESTS)


def test_oris_declares_what_it_changes(generator):
    changed = {
        a.name
        for a in torch.ops.oasis.oris_.default._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    }
    assert changed == {"statistics", "counters"}
    arguments = oris_arguments(generator)
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    torch.ops.oasis.oris_(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments[:3], before[:3], strict=True))
    assert not torch.equal(arguments[3], before[3]) and not torch.equal(arguments[4], before[4])


def test_fakes_never_reach_the_core():
    with FakeTensorMode():
        gram = torch.ops.oasis.grad_gram([torch.empty(7, 10**9)])
        assert gram.shape == (7, 7) and gram.dtype == torch.float64
        valid = torch.ones(7, dtype=torch.bool)
        floor = torch.zeros((), dtype=torch.float64)
        adjusted, order = torch.ops.oasis.siren(gram, valid, floor, "residual", 0.0)
        assert adjusted.shape == order.shape == (7,) and order.dtype == torch.int64
        state = torch.zeros(4, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
        options = oris_options()
        relative, probability, mask = torch.ops.oasis.oris_(
            adjusted, adjusted, valid, *state, options
        )
        assert relative.dtype == probability.dtype == torch.float64 and mask.dtype == torch.bool
        stop = torch.ops.oasis.oris_stop(adjusted, valid, *state, options)
        assert stop.shape == () and stop.dtype == torch.float64


def test_compiled_graph_equals_eager(generator):
    grads = torch.randn(5, 40, generator=generator)

    def gram(x):
        return torch.ops.oasis.grad_gram([x, 2 * x])

    compiled = torch.compile(gram, backend="eager", fullgraph=True)
    assert torch.equal(compiled(grads), gram(grads))


def test_backends_name_every_operator():
    for device in ("cpu", "cuda"):
        assert set(doctor.backends(device)) >= {"grad_gram", "head_gram", "siren"}


@pytest.mark.parametrize("method", ["exact", "residual"])
@pytest.mark.parametrize("n", [1, 6])
def test_select(method, n, generator):
    grads = torch.randn(n, 9, generator=generator, dtype=torch.float64)
    selector = oasis.Selector(seed=3)
    state = selector.statistics.clone(), selector.counters.clone()
    how = "gram", True, method, 0.1, n > 1, *state, oris_options()
    given = torch.ones(n, dtype=torch.bool), torch.rand(n, generator=generator).double()
    for gram in (grads @ grads.T, (grads @ grads.T).float()):
        for valid, scores in ((None, None), given):
            arguments = gram, valid, scores, *how
            opcheck(torch.ops.oasis.select_.default, arguments, test_utils=TESTS)
