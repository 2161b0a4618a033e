"""oasis/operators/launch.py down to the kernels, its launches run by the emulator.

Only what needs a card is replaced: the current stream, and the compiled launchers, whose addresses
are read from this process and given to the emulated device.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from comparing import assert_relative, cosine_scaled

import oasis
from oasis import _core, doctor, operators, reference
from oasis.names import COUNTERS, STATISTICS
from oasis.operators import cuda, launch
from oasis.operators.buffers import Selected

from .device import RULES, TYPES

NAMES = {str(dtype).removeprefix("torch."): number for dtype, number in TYPES.items()}


def read(address: int, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.uint8)


class Launchers:
    """The bindings of csrc/cuda_bindings.cpp, on the emulated device."""

    STREAM, WORKSPACE = 77, 4096

    def __init__(self, device):
        self.device, self.calls = device, []

    def _run(self, name, integers, doubles, buffers, stream):
        assert stream == self.STREAM
        memory = [read(*buffer) for buffer in buffers]
        answer = self.device.call(name, integers, doubles, memory)
        self.calls.append(name)
        for (address, size), changed in zip(buffers, memory, strict=True):
            ctypes.memmove(address, changed.numpy().tobytes(), size)
        return answer

    def cuda_gram_workspace(self, **k):
        return self.WORKSPACE

    def cuda_gram(self, *, stream, **k):
        assert k["workspace"] and k["workspace_bytes"] == self.WORKSPACE
        width = {"float32": 4, "float64": 8}.get(k["dtype"], 2)
        length = ((k["samples"] - 1) * k["row_stride"] + k["columns"]) * width
        buffers = [(k["data"], length), (k["gram"], k["samples"] ** 2 * 8)]
        integers = (NAMES[k["dtype"]], k["samples"], k["columns"], k["row_stride"], k["add"], 0)
        assert self._run("gram", integers, (), buffers, stream) == "ok"

    def cuda_sketch_workspace(self, **k):
        return self.WORKSPACE

    def cuda_sketch(self, *, stream, **k):
        assert k["workspace"] and k["workspace_bytes"] == self.WORKSPACE
        width = {"float32": 4, "float64": 8}.get(k["dtype"], 2)
        length = ((k["samples"] - 1) * k["row_stride"] + k["columns"]) * width
        buffers = [(k["data"], length), (k["out"], k["samples"] * k["dim"] * 8)]
        names = ("samples", "columns", "row_stride", "first", "dim", "seed", "exact")
        integers = (NAMES[k["dtype"]], *(k[name] for name in names))
        assert self._run("sketch", integers, (), buffers, stream) == "ok"

    def cuda_remembered_workspace(self, **k):
        return self.WORKSPACE

    def cuda_remembered(self, *, stream, **k):
        assert k["workspace"] and k["workspace_bytes"] == self.WORKSPACE
        n, width, capacity = k["n"], k["width"], k["capacity"]
        sizes = {"gram": n * n * 8, "sketch": n * width * 8, "valid": n}
        sizes |= {"memory": capacity * width * 8, "counters": len(COUNTERS) * 8}
        sizes |= {"left": n * n * 8, "scaled": n * width * 8}
        buffers = [(k[name], size) for name, size in sizes.items()]
        answer = self._run("remembered", (n, width, capacity), (k["ridge"],), buffers, stream)
        assert answer == "ok"

    def cuda_remember(self, *, stream, **k):
        n, width, capacity = k["n"], k["width"], k["capacity"]
        buffers = [(k["sketch"], n * width * 8), (k["mask"], n)]
        buffers += [(k["counters"], len(COUNTERS) * 8), (k["memory"], capacity * width * 8)]
        assert self._run("remember", (n, width, capacity), (), buffers, stream) == "ok"

    def _siren(self, k):
        n = k["n"]
        sizes = {"gram": n * n * 8, "valid": n, "floor": 8, "adjusted": n * 8, "order": n * 8}
        integers = (n, k["capacity"], RULES[k["method"]])
        return integers, [(k[name], size) for name, size in sizes.items()]

    def cuda_siren_workspace(self, **k):
        return self.WORKSPACE

    def cuda_siren(self, *, stream, **k):
        integers, buffers = self._siren(k)
        assert self._run("siren", integers, (k["ridge"],), buffers, stream) == "ok"

    def _oris(self, k):
        n = k["n"]
        sizes = {
            "statistics": len(STATISTICS) * 8,
            "counters": len(COUNTERS) * 8,
            "relative": n * 8,
            "probability": n * 8,
            "mask": n,
        }
        return [(k[name], size) for name, size in sizes.items()]

    def cuda_oris(self, *, stream, **k):
        n = k["n"]
        inputs = [(k["informativeness"], n * 8), (k["adjusted"], n * 8), (k["valid"], n)]
        self._run("oris", (n,), k["options"], inputs + self._oris(k), stream)

    def cuda_select(self, *, stream, **k):
        n = k["n"]
        sizes = dict.fromkeys(Selected._fields, n * 8) | {"mask": n, "skipped": n}
        sizes |= {"threshold": 8, "fault": 8}
        buffers = [(k["gram"], n * n * 8), (k["given"], n if k["given"] else 0)]
        buffers += [(k["statistics"], len(STATISTICS) * 8), (k["counters"], len(COUNTERS) * 8)]
        buffers += [(k[name], size) for name, size in sizes.items()]
        integers = (n, k["given"] != 0, k["products"], k["raises"], k["stop"], RULES[k["method"]])
        numbers = (k["ridge"], *k["options"])
        return self._run("select", integers, numbers, buffers, stream) == "ok"

    def cuda_usable(self, *, stream, **k):
        n, width = k["n"], k["width"]
        sizes = {"gram": n * n * 8, "given": n, "scores": n * 8, "sketch": n * width * 8}
        sizes |= {"left": n * n * 8, "informativeness": n * 8, "valid": n, "skipped": n, "wrong": 8}
        buffers = [(k[name], size if k[name] else 0) for name, size in sizes.items()]
        there = k["given"] != 0, k["scores"] != 0
        integers = (n, width, *there, k["raises"], k["products"])
        assert self._run("usable", integers, (), buffers, stream) == "ok"


@pytest.fixture
def launchers(device, monkeypatch):
    @contextmanager
    def queue(where):
        yield Launchers.STREAM

    fake = Launchers(device)
    names = [name for name in dir(fake) if name.startswith("cuda_")]
    monkeypatch.setattr(launch, "_queue", queue)
    monkeypatch.setattr(launch, "_core", SimpleNamespace(**{n: getattr(fake, n) for n in names}))
    monkeypatch.setattr(launch, "ONE_LAUNCH", 16)
    return fake


def test_backends_say_what_was_built(monkeypatch):
    for built, words in ((True, "compiled for"), (False, "OASIS_CUDA")):
        monkeypatch.setattr(launch, "BUILT", built)
        found = doctor.backends("cuda")
        for operator in ("grad_gram", "siren", "oris"):
            assert (found[operator][0] == "CUDA") == built and words in found[operator][1]


def test_what_is_built_is_bound():
    assert launch.BUILT == _core.build_info()["cuda"] == hasattr(_core, "cuda_gram")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_grad_gram_of_any_layout(launchers, dtype, generator):
    whole = torch.randn(5, 6, 8, generator=generator).to(dtype)
    for grads in (
        [whole],
        [whole, whole[:, ::2], whole[:, :, 3:], whole.transpose(1, 2), whole[:, 0, 0]],
        [whole[:1].expand(5, 6, 8), whole[::2].repeat(2, 1, 1)[:5], whole[:, :0]],
    ):
        want = reference.grad_gram([g for g in grads if g.numel()])
        got = launch.grad_gram(grads)
        assert cosine_scaled(got - want, want).max() < 3e-6
    assert set(launchers.calls) == {"gram"}


def test_grad_gram_copies_only_gradients_with_gaps(launchers, monkeypatch, generator):
    read = []
    run = launchers.cuda_gram
    monkeypatch.setattr(launch._core, "cuda_gram", lambda **k: (read.append(k["data"]), run(**k)))
    whole = torch.randn(5, 6, 8, 3, generator=generator)
    in_place = [whole, whole[:, 2:], whole.transpose(1, 3), whole.permute(0, 2, 3, 1)[:, :, :, 1:]]
    with_gaps = [whole[..., 1:], whole.flatten(1).T.contiguous().T]
    grads = in_place + with_gaps
    got, want = launch.grad_gram(grads), reference.grad_gram(grads)
    assert cosine_scaled(got - want, want).max() < 3e-6
    same = [address == g.data_ptr() for address, g in zip(read, grads, strict=True)]
    assert same == [True] * len(in_place) + [False] * len(with_gaps)


@pytest.mark.parametrize("n", [1, 9, 16, 17, 40])
@pytest.mark.parametrize("method", list(RULES))
def test_siren_equals_the_cpu(launchers, n, method, generator):
    grads = torch.randn(n, 50, generator=generator, dtype=torch.float64)
    gram, valid = grads @ grads.T, torch.ones(n).bool()
    if n == 40:
        valid[::2] = valid[1::8] = False
    floor = torch.tensor(-torch.inf, dtype=torch.float64)
    want = operators.siren(gram, valid, floor, method, 0.01)
    got = launch.siren(gram.T, valid, floor, method, 0.01)
    assert_relative(got[0], want[0], 1e-10, floor=float(gram.max()))
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("shared", [227 * 1024, 99 * 1024])
@pytest.mark.parametrize("n", [4, 16, 18])
@pytest.mark.parametrize(("method", "stop"), [("exact", True), ("mean_field", False)])
def test_select_equals_the_cpu(launchers, device, shared, n, method, stop, generator, monkeypatch):
    device.configure(shared=shared)
    monkeypatch.setattr(launch, "BUILT", True)
    monkeypatch.setattr(launch, "MAX_SAMPLES", 4096)
    ours, theirs = oasis.Selector(seed=5), oasis.Selector(seed=5)
    options = ours.preset.options(0.25)
    for _ in range(3):
        grads = torch.randn(n, 30, generator=generator, dtype=torch.float64)
        gram, valid = grads @ grads.T, torch.rand(n, generator=generator) < 0.9
        arguments = (gram, valid, None, "gram", True, method, 0.0, stop)
        want = operators.select_(*arguments, theirs.statistics, theirs.counters, options)
        got = cuda.select_(*arguments, ours.statistics, ours.counters, options)
        for g, w in zip(got, want, strict=True):
            if w.dtype == torch.float64:
                assert_relative(g, w, 1e-9, floor=float(w.abs().max()) + 1e-9)
            else:
                assert torch.equal(g, w)
        assert_relative(ours.statistics, theirs.statistics, 1e-9, floor=1e-6)
        assert torch.equal(ours.counters, theirs.counters)
    one = n < 16 or n == 16 and (method != "exact" or shared > 150 * 1024)
    calls = ["select"] if one else ["select", "usable", "siren", "oris"][n > 16 :]
    assert launchers.calls == calls * 3, "one launch where it fits, three where it does not"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sketches(launchers, dtype, generator):
    whole = torch.randn(3, 6, 50, generator=generator).to(dtype)
    layouts = [whole, whole.transpose(1, 2), whole[:, ::2, 3:], whole[:1].expand(3, 6, 50)]
    for grads in ([view] for view in layouts):
        got = launch.grad_sketch(grads, 32, 1, False)
        assert_relative(got, operators.grad_sketch(grads, 32, 1), 1e-12, floor=1.0)
    grads = [whole[:, 0], whole[:, 1, 1], whole[:, 2]]
    assert torch.equal(
        launch.grad_sketch(grads, 101, 1, True), operators.grad_sketch(grads, 101, 1)
    )


def test_what_remembered_samples_leave(launchers, generator):
    state = torch.zeros(3, 20, dtype=torch.float64), torch.zeros(len(COUNTERS), dtype=torch.int64)
    want = state[0].clone()
    for _ in range(4):
        grads = torch.randn(4, 20, generator=generator, dtype=torch.float64)
        valid = torch.tensor([True, True, False, True])
        gram = torch.where(valid & valid[:, None], grads @ grads.T, 0.0)
        got = launch.remembered(gram, grads, valid, *state, 0.1)
        expected = operators.remembered(gram, grads, valid, *state, 0.1)
        for a, b in zip(got, expected, strict=True):
            assert_relative(a, b, 1e-11, floor=1.0)
        mask = valid & (torch.rand(4, generator=generator) < 0.7)
        state[1][COUNTERS["selected"]] += mask.sum()
        launch.remember_(expected[1], mask, state[1], state[0])
        operators.remember_(expected[1], mask, state[1], want)
        assert torch.equal(state[0], want)
    assert launchers.calls == ["remembered", "remember"] * 4
