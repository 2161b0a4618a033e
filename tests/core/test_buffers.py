"""Whatever reaches the operators: a wrong buffer is named in an error, and nothing has changed."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from head_operands import head_operands
from head_problems import parts
from hypothesis import given
from hypothesis import strategies as st
from oris_steps import oris_options

import oasis
from oasis.gram.operators import head_merge_blocks
from oasis.names import OPTIONS as NAMES
from oasis.operators import buffers as checked
from oasis.operators import cuda, launch

OPERATORS = torch.ops.oasis
N = 5
FLOOR = torch.tensor(-torch.inf, dtype=torch.float64)
OPTIONS = oris_options()


def state():
    selector = oasis.Selector(seed=3)
    selector.select(torch.randn(N, 9, generator=torch.Generator().manual_seed(1)))
    return {"statistics": selector.statistics, "counters": selector.counters}


def inputs():
    grads = torch.randn(N, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gram = grads @ grads.T
    scores = gram.diagonal().clone()
    valid = torch.ones(N, dtype=torch.bool)
    names = ("informativeness", "adjusted", "scores")
    return {"gram": gram, "valid": valid, **{name: scores.clone() for name in names}}


def siren(b, method="exact"):
    return OPERATORS.siren(b["gram"], b["valid"], b["floor"], method, 0.0, b["informativeness"])


def oris(b, options=OPTIONS):
    first = (b[k] for k in ("informativeness", "adjusted", "valid", "statistics", "counters"))
    return OPERATORS.oris_(*first, options)


def select(b, method="exact", options=OPTIONS):
    first = b["gram"], b["valid"], b["scores"], "gram", True, method, 0.0, True
    return OPERATORS.select_(*first, b["statistics"], b["counters"], options)


READ = {
    siren: ("gram", "valid", "floor", "informativeness"),
    oris: ("informativeness", "adjusted", "valid"),
    select: ("gram", "valid", "scores"),
}
WRITTEN = ("statistics", "counters")


def freed(tensor):
    """A tensor whose memory is gone, as sharding frameworks leave it."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


# Of a buffer of the right kind, a wrong one.
FAULTS = {
    "float32": lambda t: t.float(),
    "bfloat16": lambda t: t.bfloat16(),
    "int32": lambda t: t.int(),
    "float64 or int64": lambda t: t.long() if t.dtype == torch.float64 else t.double(),
    "empty": lambda t: t[:0] if t.ndim else t.new_empty(0),
    "short": lambda t: t[:-1] if t.ndim else t.new_empty(0),
    "long": lambda t: torch.cat([t, t[:1]]) if t.ndim else t.expand(2),
    "one more axis": lambda t: t.unsqueeze(0),
    "freed": freed,
}
FAULTS_IN_PLACE = {
    "expanded": lambda t: t[:1].expand(len(t)),
    "every other": lambda t: t.repeat_interleave(2)[::2],
}


@pytest.mark.parametrize("operator", READ, ids=lambda f: f.__name__)
@given(data=st.data())
def test_a_wrong_buffer_raises_and_changes_no_state(operator, data):
    buffers = inputs() | state() | {"floor": FLOOR}
    in_place = operator is not siren
    name = data.draw(st.sampled_from(READ[operator] + WRITTEN * in_place))
    faults = FAULTS | (FAULTS_IN_PLACE if name in WRITTEN else {})
    fine = {"float32", "bfloat16"} if (operator, name) == (select, "gram") else set()
    buffers[name] = faults[data.draw(st.sampled_from(sorted(set(faults) - fine)))](buffers[name])
    kept = {k: buffers[k].clone() for k in WRITTEN if k != name}
    # Whose length is wrong, the informativeness or what stands beside it?
    named = f"{name}|adjusted" if name == "informativeness" else name
    with pytest.raises((TypeError, ValueError), match=f"^({named}): got "):
        operator(buffers)
    assert all(torch.equal(buffers[k], kept[k]) for k in kept)


@pytest.mark.parametrize("operator", READ, ids=lambda f: f.__name__)
@given(data=st.data())
def test_read_buffers_may_have_any_strides(operator, data):
    buffers = inputs() | state() | {"floor": FLOOR}
    want = operator(copy.deepcopy(buffers))
    for name in READ[operator]:
        if buffers[name].ndim and data.draw(st.booleans()):
            wide = torch.stack([buffers[name], torch.zeros_like(buffers[name])], -1)
            buffers[name] = wide[..., 0]
    assert all(torch.equal(g, w) for g, w in zip(operator(buffers), want, strict=True))


@pytest.mark.parametrize("operator", [oris, select], ids=lambda f: f.__name__)
def test_another_device_is_refused(operator):
    # Dispatched to the device that most belong to; a meta tensor stands for another one.
    device = torch.device("meta")
    with pytest.raises(ValueError, match="statistics: got device cpu, expected meta"):
        checked.state_buffers(*state().values(), device)
    with pytest.raises(ValueError, match="adjusted: got device cpu, expected meta"):
        b = inputs()
        checked.oris_inputs(b["informativeness"].to(device), b["adjusted"], b["valid"], device)


@pytest.mark.parametrize(
    ("operator", "name"), [(each, name) for each in READ for name in READ[each]]
)
def test_tensors_on_several_devices_are_refused_whoever_is_asked(operator, name):
    # One on "meta" sends the call to the fake kernel, whose tensors hold whatever was in memory.
    buffers = inputs() | state() | {"floor": FLOOR}
    buffers[name] = buffers[name].to("meta")
    with pytest.raises(ValueError, match="devices cpu, meta, expected one"):
        operator(buffers)


def numbered(name, value):
    """The options with another number at a name's place, whatever it means."""
    options = list(OPTIONS)
    options[list(NAMES).index(name)] = float(value)
    return options


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda b: siren(b, "exakt"), "method: got 'exakt', expected one of exact, mean_field"),
        (lambda b: select(b, "auto"), "method: got 'auto'"),
        (lambda b: oris(b, oris_options(scale="typo")), "scale: got 'typo', .* within"),
        (lambda b: oris(b, oris_options(draw="")), "draw: got '', .* bernoulli"),
        (
            lambda b: oris(b, numbered("scale", 4)),
            "scale: got 4.*, expected one of sample,",
        ),
        (lambda b: oris(b, numbered("draw", -1)), "draw: got -1.*, expected one of bernoulli"),
        (
            lambda b: select(b, options=numbered("draw", 0.5)),
            "draw: got 0.5",
        ),
        (lambda b: oris(b, numbered("recursion", math.nan)), "recursion: got nan, expected one of"),
        (lambda b: oris(b, numbered("warmup", 1e300)), "warmup: got 1.*, expected an integer"),
        (lambda b: oris(b, OPTIONS[:-1]), "options: got 8 numbers, expected 9"),
    ],
)
def test_unknown_names_raise_and_change_no_state(call, words):
    buffers = inputs() | state() | {"floor": FLOOR}
    kept = {k: buffers[k].clone() for k in WRITTEN}
    with pytest.raises(ValueError, match=words):
        call(buffers)
    assert all(torch.equal(buffers[k], kept[k]) for k in WRITTEN)


def test_the_exact_rule_takes_thirty_valid_samples_at_most():
    buffers = {"gram": torch.eye(31).double(), "floor": FLOOR, "informativeness": None}
    with pytest.raises(ValueError, match="method: 'exact' takes at most 30 valid samples, got 31"):
        siren(buffers | {"valid": torch.ones(31, dtype=torch.bool)})
    with pytest.raises(ValueError, match="method: 'exact' takes at most 30 valid samples, got 31"):
        launch.siren(buffers["gram"], torch.ones(31, dtype=torch.bool), FLOOR, "exact", 0.0)
    adjusted, order = siren(buffers | {"valid": torch.arange(31) < 4})
    assert adjusted.sum() == 4 and order.tolist() == [0, 1, 2, 3] + [-1] * 27


def test_a_device_without_kernels_takes_the_same_buffers():
    # The copy to the CPU and back (no CUDA kernels) must not hide a state that cannot be advanced.
    buffers = inputs() | state()
    first = [buffers[k] for k in ("informativeness", "adjusted", "valid")]
    expanded = torch.zeros(1, dtype=torch.float64).expand(4)
    with pytest.raises(ValueError, match="^statistics: got strides"):
        cuda.oris_(*first, expanded, buffers["counters"], OPTIONS)


@pytest.mark.parametrize("name", ["gram", "valid", *WRITTEN])
@pytest.mark.parametrize("one_launch", [True, False])
def test_the_cuda_launchers_see_checked_buffers_alone(name, one_launch, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("an address was taken")

    monkeypatch.setattr(launch, "_launch", refuse)
    monkeypatch.setattr(launch, "BUILT", True)
    monkeypatch.setattr(launch, "ONE_LAUNCH", 16 if one_launch else 0)
    b = inputs() | state()
    b[name] = FAULTS["short"](b[name])
    how = "gram", True, "exact", 0.0, False, b["statistics"], b["counters"], OPTIONS
    with pytest.raises(ValueError, match=f"^{name}: got shape"):
        cuda.select_(b["gram"], b["valid"], None, *how)


@pytest.mark.parametrize(
    ("grads", "error", "words"),
    [
        ([torch.zeros(0, 3)], ValueError, r"grads\[0\]: got shape \[0, 3\]"),
        ([torch.tensor(1.0)], ValueError, r"grads\[0\]: got shape \[\]"),
        ([torch.zeros(3, 2), torch.zeros(2, 2)], ValueError, r"grads\[1\]: got 2 samples"),
        ([torch.zeros(3, 2).long()], TypeError, r"grads\[0\]: got dtype torch.int64"),
        ([torch.zeros(3, 2), freed(torch.zeros(3, 2))], ValueError, r"grads\[1\]: got 0 bytes"),
        ([torch.zeros(3, 2), torch.zeros(3, 2, device="meta")], ValueError, "cpu, meta, expected"),
    ],
)
def test_grad_gram(grads, error, words):
    with pytest.raises(error, match=words):
        OPERATORS.grad_gram(grads)


HEAD = ("hidden", "weight", "labels", "sample", "num_samples", "bias")


@pytest.mark.parametrize("method", ["ghost", "instantiate", "sketch"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("labels", lambda t: t.int()),
        ("labels", lambda t: t[:-1]),
        ("sample", lambda t: t.int()),
        ("sample", lambda t: t + 2),
        ("bias", lambda t: t[:-1]),
        ("bias", lambda t: t[:0]),
        ("bias", lambda t: t.unsqueeze(0)),
        ("weight", lambda t: t[:, :-1]),
        ("weight", lambda t: t.double()),
        ("hidden", lambda t: t.long()),
        ("hidden", freed),
        ("weight", freed),
    ],
)
def test_head_gram(name, change, method, generator):
    arguments = list(head_operands(torch.float32, True, False, generator))
    at = HEAD.index(name)
    arguments[at] = change(arguments[at])
    with pytest.raises((TypeError, ValueError), match=f"^({name}|weight): got "):
        OPERATORS.head_gram(*arguments, method, 32, 1)
    with pytest.raises((TypeError, ValueError), match=f"^({name}|weight): got "):
        OPERATORS.head_partial(*arguments, 0)


def test_an_unknown_method_of_head_gram_raises(generator):
    arguments = head_operands(torch.float32, True, False, generator)
    with pytest.raises(ValueError, match="method: got 'gost', expected one of ghost"):
        OPERATORS.head_gram(*arguments, "gost", 32, 1)


def two_parts():
    generator = torch.Generator().manual_seed(5)
    names = ("hidden", "weight", "labels", "sample", "num_samples", "bias")
    problem = head_operands(torch.float32, True, False, generator)[:6]
    return parts(dict(zip(names, problem, strict=True)), 12)


PART_FIELDS = ("products", "gathers", "token", "deltas", "inner", "hidden", "labels", "tokens")
PART_FAULTS = {
    "another float": lambda t: t.float() if t.dtype == torch.float64 else t.double(),
    "bfloat16": lambda t: t.bfloat16(),
    "empty": lambda t: t[:0],
    "narrow": lambda t: t[..., :-1],
    "wide": lambda t: torch.cat([t, t[..., :1]], -1),
    "one more axis": lambda t: t.unsqueeze(0),
    "freed": freed,
}


@given(
    field=st.sampled_from(PART_FIELDS),
    fault=st.sampled_from(sorted(PART_FAULTS)),
    which=st.sampled_from([(0,), (1,), (0, 1)]),
)
def test_merge_refuses_wrong_fields(field, fault, which):
    given = two_parts()
    if field in ("inner", "hidden"):  # the first part's is taken for all
        which = (0,)
    if field == "tokens":  # without the last sample, which is empty, both are as good
        which = which[:1]
    for i in which:
        given[i] = replace(given[i], **{field: PART_FAULTS[fault](getattr(given[i], field))})
    with pytest.raises((TypeError, ValueError), match="got |has other labels"):
        oasis.merge(given)


@given(data=st.data())
def test_merge_takes_fields_of_any_strides(data):
    want, given = oasis.merge(two_parts()), two_parts()
    for i in range(2):
        for field in PART_FIELDS:
            tensor = getattr(given[i], field)
            how = data.draw(st.sampled_from(["as it is", "stepped", "transposed"]))
            if how == "stepped":
                tensor = torch.stack([tensor, tensor + 1], -1)[..., 0]
            elif how == "transposed" and tensor.ndim == 2:
                tensor = tensor.T.contiguous().T
            given[i] = replace(given[i], **{field: tensor})
    assert torch.equal(oasis.merge(given).gram, want.gram)
    assert torch.equal(oasis.merge(given).sketch, want.sketch)


def test_merge_wants_counts_that_add_up():
    *sums, inner, hidden, labels, tokens = (getattr(two_parts()[0], name) for name in PART_FIELDS)
    lists, options = [[x] for x in sums], (0.0, 1.0, True)
    for wrong in (tokens + 1, torch.tensor([-1, *tokens[1:], 1 + tokens[0]])):
        with pytest.raises(ValueError, match="tokens: got .* expected counts that add to 5"):
            head_merge_blocks(*lists, inner, hidden, labels, wrong, *options)
    lists[1] *= 2
    with pytest.raises(ValueError, match=r"got \(1, 2, 1, 1\) parts"):
        head_merge_blocks(*lists, inner, hidden, labels, tokens, *options)
