"""A Selector's state is taken over whole or not at all, and nothing rounds it."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import oasis
from oasis.names import COUNTERS, STATISTICS
from oasis.selection.state import ENTRIES

MODES = [
    {"strict": strict, "assign": assign} for strict in (True, False) for assign in (False, True)
]


def used(seed=1, ratio=0.25, **options):
    selector = oasis.Selector(ratio, seed=seed, **options)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        selector.select(torch.randn(8, 12, generator=generator))
    return selector


def entry(name, index, value):
    """A fault: one number of one entry."""

    def change(state):
        state[name][index] = value

    return change


def replaced(name, change):
    def apply(state):
        state[name] = change(state[name])

    return apply


def text(content: bytes):
    return torch.tensor(list(content), dtype=torch.uint8)


FAULTS = {
    "mean inf": entry("statistics", STATISTICS["mean"], math.inf),
    "mean nan": entry("statistics", STATISTICS["mean"], math.nan),
    "mean negative": entry("statistics", STATISTICS["mean"], -1.0),
    "variance negative": entry("statistics", STATISTICS["variance"], -1e-9),
    "variance inf": entry("statistics", STATISTICS["variance"], math.inf),
    "within negative": entry("statistics", STATISTICS["within"], -1.0),
    "within nan": entry("statistics", STATISTICS["within"], math.nan),
    "threshold inf": entry("statistics", STATISTICS["threshold"], math.inf),
    "threshold minus inf": entry("statistics", STATISTICS["threshold"], -math.inf),
    "threshold nan": entry("statistics", STATISTICS["threshold"], math.nan),
    **{f"{c} negative": entry("counters", at, -1) for c, at in COUNTERS.items()},
    "selected beyond candidates": entry("counters", COUNTERS["selected"], 41),
    "batches beyond candidates": entry("counters", COUNTERS["batches"], 41),
    "statistics float32": replaced("statistics", torch.Tensor.float),
    "statistics half": replaced("statistics", torch.Tensor.half),
    "statistics int64": replaced("statistics", torch.Tensor.long),
    "statistics short": replaced("statistics", lambda t: t[:3]),
    "statistics long": replaced("statistics", lambda t: torch.cat([t, t[:1]])),
    "statistics square": replaced("statistics", lambda t: t.view(2, 2)),
    "statistics meta": replaced("statistics", lambda t: t.to("meta")),
    "statistics list": replaced("statistics", torch.Tensor.tolist),
    "counters float64": replaced("counters", torch.Tensor.double),
    "counters int32": replaced("counters", torch.Tensor.int),
    "counters short": replaced("counters", lambda t: t[:5]),
    "counters empty": replaced("counters", lambda t: t[:0]),
    **{f"{name} missing": (lambda state, n=name: state.pop(n)) for name in ENTRIES},
    "_extra_state is no JSON": replaced("_extra_state", lambda t: text(b"{ratio")),
    "_extra_state is no text": replaced("_extra_state", lambda t: text(b"\xff\xfe")),
    "_extra_state is a number": replaced("_extra_state", lambda t: text(b"7")),
    "_extra_state float32": replaced("_extra_state", torch.Tensor.float),
    "_extra_state ratio": replaced("_extra_state", lambda t: used(ratio=0.5).get_extra_state()),
}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("inside", [False, True])
@given(fault=st.sampled_from(sorted(FAULTS)))
def test_a_broken_state_is_refused_whole(mode, inside, fault):
    state = copy.deepcopy(used().state_dict())
    FAULTS[fault](state)
    selector = used(seed=2)
    module = nn.ModuleDict({"own": selector}) if inside else selector
    before = copy.deepcopy(selector.state_dict())
    prefix = "own." if inside else ""
    name = fault.split()[0] if fault.split()[0] in ENTRIES else ""
    with pytest.raises((TypeError, ValueError), match=f"^state: .*{name}") as caught:
        module.load_state_dict({prefix + k: v for k, v in state.items()}, **mode)
    assert fault.split()[0] in str(caught.value), "the message names what is wrong"
    assert all(torch.equal(v, before[k]) for k, v in selector.state_dict().items())


def test_entries_of_something_else_are_refused_before_anything_is_copied():
    selector = used(seed=2)
    before = copy.deepcopy(selector.state_dict())
    with pytest.raises(ValueError, match="state: got weight"):
        selector.load_state_dict({**used().state_dict(), "weight": torch.ones(2)})
    assert all(torch.equal(v, before[k]) for k, v in selector.state_dict().items())
    selector.load_state_dict({**used().state_dict(), "weight": torch.ones(2)}, strict=False)
    assert torch.equal(selector.counters, used().counters)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_whole_state_resumes(mode):
    first, second = used(), used(seed=2)
    second.load_state_dict(first.state_dict(), **mode)
    batch = torch.randn(8, 12)
    assert torch.equal(first.select(batch).mask, second.select(batch).mask)
    assert torch.equal(first.statistics, second.statistics)


def test_an_assigned_state_is_the_selectors_own():
    # torch would keep the given tensors: those of another selector, or expanded ones.
    first, second = used(), used(seed=2)
    state = first.state_dict()
    state["statistics"] = torch.stack([state["statistics"]] * 2, 1)[:, 0]
    second.load_state_dict(state, assign=True)
    kept = first.statistics.clone(), first.counters.clone()
    second.select(torch.randn(8, 12))
    assert torch.equal(first.statistics, kept[0]) and torch.equal(first.counters, kept[1])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_was_made_and_loaded_in_inference_mode_goes_on_outside(mode):
    with torch.inference_mode():
        selector = used(remember=4)
        selector.load_state_dict(selector.state_dict(), **mode)
        selector.to("cpu")
    assert not any(buffer.is_inference() for buffer in selector.buffers())
    selector.load_state_dict(used(2, remember=4).state_dict(), **mode)
    selector.select(torch.randn(8, 12))


def test_a_state_dict_without_the_selector_leaves_it_alone():
    module = nn.ModuleDict({"own": used(seed=2), "other": nn.Linear(2, 2)})
    before = copy.deepcopy(module["own"].state_dict())
    rest = {k: v for k, v in module.state_dict().items() if k.startswith("other")}
    module.load_state_dict(rest, strict=False)
    with pytest.raises(RuntimeError, match="own.statistics"):
        module.load_state_dict(rest)
    assert all(torch.equal(v, before[k]) for k, v in module["own"].state_dict().items())


def test_numbers_of_numpy_are_saved_as_the_numbers_that_they_are():
    options = {"remember": np.int64(8), "warmup": np.int32(5), "beta": np.float32(0.5)}
    selector = oasis.Selector(np.float64(0.25), **options, ridge=Fraction(1, 2))
    selector.select(torch.randn(8, 30))
    plain = {name: value.item() for name, value in options.items()}
    oasis.Selector(0.25, **plain, ridge=0.5).load_state_dict(selector.state_dict())


def test_what_is_read_of_a_state_is_not_the_state():
    selector = oasis.Selector(0.5)
    before = selector.selected, selector.candidates, selector.threshold, selector.mean
    kept = [value.item() for value in before]
    selector.select(torch.randn(8, 30))
    assert [value.item() for value in before] == kept
    assert selector.candidates - before[1] == 8


def test_ratio_one_keeps_its_threshold():
    state = used(ratio=1.0).state_dict()
    oasis.Selector(1.0).load_state_dict(state)
    with pytest.raises(ValueError, match="threshold 0.0, expected -inf"):
        state["statistics"][STATISTICS["threshold"]] = 0.0
        oasis.Selector(1.0).load_state_dict(state)


CASTS = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "float": lambda m: m.float(),
    "double": lambda m: m.double(),
    "type": lambda m: m.type(torch.float16),
    "to a type": lambda m: m.to(torch.bfloat16),
    "to a device and type": lambda m: m.to("cpu", torch.float16),
    "to a tensor's": lambda m: m.to(torch.zeros(1, dtype=torch.float16)),
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "cast copy": lambda m: copy.deepcopy(m).half(),
    "apply": lambda m: m.apply(lambda part: part.half()),
    "shared memory": lambda m: m.share_memory(),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_no_cast_of_a_module_rounds_the_selector_in_it(cast):
    model = nn.ModuleDict({"selector": used(), "rest": nn.ModuleDict({"linear": nn.Linear(3, 2)})})
    want, batch = used(), torch.randn(8, 12)
    got = cast(model)["selector"]
    assert torch.equal(got.statistics, want.statistics)
    assert torch.equal(got.counters, want.counters)
    assert torch.equal(got.select(batch).mask, want.select(batch).mask)
    assert torch.equal(got.statistics, want.statistics)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("statistics", torch.zeros(4), TypeError),
        ("statistics", torch.zeros(3, dtype=torch.float64), ValueError),
        ("statistics", torch.zeros(1, dtype=torch.float64).expand(4), ValueError),
        ("counters", torch.zeros(6, dtype=torch.int32), TypeError),
        ("counters", torch.zeros(5, dtype=torch.int64), ValueError),
        ("counters", torch.zeros(12, dtype=torch.int64)[::2], ValueError),
    ],
)
@pytest.mark.parametrize("preset", ["calibrated", "released"])
def test_a_state_set_by_hand_is_checked_at_the_next_batch(name, value, error, preset):
    selector = used(preset=preset)
    setattr(selector, name, value)
    before = copy.deepcopy([selector.statistics, selector.counters])
    for scores in (None, torch.rand(8).double()):
        with pytest.raises(error, match=f"^{name}: got "):
            selector.select(torch.randn(8, 12), scores=scores)
    assert torch.equal(selector.statistics, before[0])
    assert torch.equal(selector.counters, before[1])
