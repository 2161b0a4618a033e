"""From hidden states to the mask on a GPU nothing waits: the CUDA path, traced on CPU tensors.

The launches are left out, since they only queue; what is left is every operator of torch that the
path calls. One that reads a value, has a size that depends on one, or copies between host and
device fails the test.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from head_problems import problem
from oasis.kernels.triton import folded, visit
from oasis.kernels.triton import head as triton_head
from torch.utils._python_dispatch import TorchDispatchMode

import oasis
from oasis import operators
from oasis.operators import cuda, launch
from oasis.operators.candidates import usable_on_gpu
from oasis.selection import redundancy

WAITING = (
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "bincount",
    "unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave",
    "lift_fresh", "pin_memory",
)  # fmt: skip
# What queues nothing: memory, and other views of it.
FREE = {
    "empty", "new_empty", "empty_like", "empty_strided", "slice", "select", "view", "detach", "t",
    "unbind", "transpose", "unsqueeze", "diagonal", "alias", "expand", "_unsafe_view", "split",
    "permute", "view_as_real", "view_as_complex",
}  # fmt: skip


class Trace(TorchDispatchMode):
    """Names of the operators called, and of those among them that wait for a device."""

    def __init__(self):
        super().__init__()
        self.calls, self.waits = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls.append(name)
        moved = name in ("_to_copy", "copy_") and (kwargs or {}).get("device") is not None
        by_mask = name in ("index", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if name in WAITING or moved or by_mask:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))

    @property
    def queued(self):
        return [name for name in self.calls if name not in FREE]


class Queued:
    """A Triton kernel that is not run; the indices that it would write are 0."""

    def __getitem__(self, grid):
        def launch(*arguments, **_):
            for x in arguments:
                if isinstance(x, torch.Tensor) and not x.is_floating_point():
                    x.numpy().fill(0)

        return launch


@pytest.fixture
def on_gpu(monkeypatch):
    """`oasis` takes the path of a GPU, on CPU tensors and without the launches."""
    launched = []

    def queue(name):
        return lambda **_: launched.append(name) or True

    def workspace(**_):
        return 64

    @contextmanager
    def stream(device):
        yield 0

    for module in (folded, visit):
        for name in dir(module):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Queued())

    def head_gram(*arguments):
        *tensors, method, dim, seed, sketch = arguments
        fold, float8 = dim * (method == "folded"), method == "float8"
        return triton_head.head_gram(*tensors, (sketch, seed), fold, float8)

    monkeypatch.setattr(operators, "head_gram", head_gram)
    monkeypatch.setattr(operators, "usable", usable_on_gpu)
    for name in ("select_", "siren", "oris_"):
        monkeypatch.setattr(operators, name, getattr(cuda, name))
    for name in ("remembered", "remember_"):
        monkeypatch.setattr(operators, name, getattr(launch, name))
    monkeypatch.setattr(redundancy, "readable", lambda tensor: False)
    monkeypatch.setattr(launch, "_queue", stream)
    monkeypatch.setattr(launch, "ONE_LAUNCH", 16)
    monkeypatch.setattr(launch, "MAX_SAMPLES", 4096)
    monkeypatch.setattr(launch, "BUILT", True)
    names = "usable", "select", "siren", "oris", "remembered", "remember"
    kernels = {f"cuda_{name}": queue(name) for name in names}
    sizes = {f"cuda_{name}_workspace": workspace for name in ("siren", "remembered")}
    monkeypatch.setattr(launch, "_core", SimpleNamespace(**kernels, **sizes))
    launch._lowest(torch.device("cpu"))  # made once in a process
    return launched


def trace(selector, arguments, sketch, method="ghost"):
    for _ in range(2):  # the second time, as what is made once has been made
        with Trace() as found:
            head = oasis.head_gram(**arguments, method=method, sketch=sketch)
            selection = selector.select(gram=head)
            assert selection.mask.shape == (5,)
    return found


@pytest.fixture
def arguments(generator):
    lengths = [9, 0, 20, 5, 3]
    return problem(generator, lengths=lengths, d=8, v=300, masked=0.2, dtype=torch.float32)


@pytest.mark.parametrize("sketch", [0, 64])
@pytest.mark.parametrize(
    ("preset", "method"),
    [
        ("calibrated", "ghost"),
        ("paper", "ghost"),
        ("released", "ghost"),
        ("calibrated", "folded"),
        ("calibrated", "float8"),
    ],
)
def test_nothing_waits_between_hidden_states_and_mask(on_gpu, arguments, preset, method, sketch):
    selector = oasis.Selector(0.5, preset=preset)
    found = trace(selector, arguments, sketch, method)
    assert found.waits == []
    assert on_gpu == ["select"] * 2, "one launch from Gram matrix to mask"


def test_from_the_gram_matrix_on_torch_queues_nothing(on_gpu):
    selector, gram = oasis.Selector(0.5), torch.eye(16, dtype=torch.float64)
    with Trace() as found:
        selector.select(gram=gram)
    assert found.queued == [] and on_gpu == ["select"]


@pytest.mark.parametrize("sketch", [64, 512])
def test_nothing_waits_where_samples_are_remembered(on_gpu, arguments, sketch):
    found = trace(oasis.Selector(0.5, remember=64), arguments, sketch)
    assert found.waits == []
    assert on_gpu == ["usable", "remembered", "siren", "oris", "remember"] * 2


def test_few_operators_of_torch_are_queued(on_gpu, arguments):
    """As called by default, with sketches that this selector has no use for."""
    blocks = -(-300 // triton_head.blocks_for(torch.device("cpu")).vocabulary_block(37))
    found = trace(oasis.Selector(0.5), arguments, 512)
    assert blocks > 3
    assert found.queued.count("mm") == blocks + 1
    assert len(found.queued) <= 16 + blocks, found.queued


def test_the_net_holds(on_gpu, arguments, monkeypatch):
    def reading(*arguments):
        results = cuda.select_(*arguments)
        int(results[-1])
        return results

    monkeypatch.setattr(operators, "select_", reading)
    assert trace(oasis.Selector(0.5), arguments, 0).waits == ["_local_scalar_dense"]


def test_a_batch_that_would_raise_selects_nothing_and_tells_later(generator, monkeypatch):
    """`usable` of a GPU, before the CPU's operators: the code travels with the selection."""
    monkeypatch.setattr(launch, "BUILT", False)  # plain torch, on CPU tensors
    grads = torch.randn(6, 20, generator=generator, dtype=torch.float64)
    good = grads @ grads.T
    bad = {
        "expected inner products": good + torch.eye(6, dtype=torch.float64).roll(1, 0) * 1e3,
        "negative diagonal": good - 2 * torch.diag(good.diagonal()),
        "not finite": good.clone().fill_diagonal_(torch.nan),
    }
    for words, gram in bad.items():
        left, scores, valid, skipped, fault = usable_on_gpu(gram, None, None, None, "gram", True)
        assert not valid.any() and (left == 0).all() and (scores == 0).all() and fault > 0
        selection = oasis.Selector(0.5).select(gram=good)
        with pytest.raises(ValueError, match=words):
            oasis.selection.selector.replace(selection, fault=fault).check()
    want = operators.usable(good, None, None, None, "gram", True)
    got = usable_on_gpu(good, None, None, None, "gram", True)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert got[-1] == 0
