"""What a user compiles: from hidden states to the mask in one graph, no value read on the way."""

from __future__ import annotations

import copy

import pytest
import torch
from head_problems import problem
from torch._subclasses.fake_tensor import FakeTensorMode

import oasis

BACKENDS = ["eager", "aot_eager"]
N = 4


def batch(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    arguments = problem(generator, lengths=[5, 2, 6, 3], d=6, v=40, masked=0.2, dtype=dtype)
    return [arguments[k] for k in ("hidden", "weight", "labels", "sample")]


def scored(method):
    def mask(selector, hidden, weight, labels, sample):
        gram = oasis.head_gram(hidden, weight, labels, sample, num_samples=N, method=method)
        return selector.select(gram=gram).mask

    return mask


def assert_same_stream(function, backend, selector, batches):
    """Compiled without a break, call by call the same masks and the same state as eager."""
    torch._dynamo.reset()
    other = copy.deepcopy(selector)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for tensors in batches:
        want, got = function(selector, *tensors), compiled(other, *tensors)
        assert torch.equal(got, want)
        for name, value in selector.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name
    assert int(selector.batches) == len(batches)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["ghost", "auto", "instantiate"])
def test_from_hidden_states_to_the_mask(method, backend):
    batches = [batch(seed) for seed in range(4)]
    assert_same_stream(scored(method), backend, oasis.Selector(0.5, seed=3), batches)


def test_by_inductor():
    batches = [batch(seed) for seed in range(3)]
    assert_same_stream(scored("ghost"), "inductor", oasis.Selector(0.5, seed=3), batches)


@pytest.mark.parametrize("preset", sorted(oasis.PRESETS))
@pytest.mark.parametrize("kind", ["gram", "grads"])
def test_from_a_gram_matrix_or_gradients(kind, preset, generator):
    def mask(selector, tensor):
        return selector.select(**{kind: tensor}).mask

    batches = []
    for _ in range(3):
        grads = torch.randn(6, 30, generator=generator, dtype=torch.float64)
        batches.append([grads @ grads.T if kind == "gram" else grads])
    assert_same_stream(mask, "aot_eager", oasis.Selector(0.5, preset=preset, seed=3), batches)


@pytest.mark.parametrize("remember", [8, 64])
def test_of_a_selector_that_remembers(remember):
    batches = [batch(seed) for seed in range(4)]
    selector = oasis.Selector(0.5, seed=3, remember=remember)
    assert_same_stream(scored("ghost"), "aot_eager", selector, batches)


def test_sketches_of_any_strides():
    def choose(selector, gram, sketch):
        return selector.select(gram=gram, sketch=sketch).mask

    grads = [torch.randn(8, 512, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    given = [(oasis.grad_gram(g), g.double().T.contiguous().T) for g in grads]
    assert_same_stream(choose, "inductor", oasis.Selector(0.5, remember=4), given)


def test_all_of_head_gram_and_siren():
    def results(hidden, weight, labels, sample):
        head = oasis.head_gram(hidden, weight, labels, sample, num_samples=N, method="ghost")
        rule = oasis.siren(head.gram, method="residual")
        return head.gram, head.loss, head.correct, head.sketch, rule.adjusted, rule.picks

    torch._dynamo.reset()
    for got, want in zip(
        torch.compile(results, backend="aot_eager", fullgraph=True)(*batch(0)),
        results(*batch(0)),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_a_compiled_call_raises_and_leaves_the_state():
    torch._dynamo.reset()
    selector = oasis.Selector(0.5, seed=3)
    compiled = torch.compile(scored("ghost"), backend="aot_eager", fullgraph=True)
    compiled(selector, *batch(0))
    before = {k: v.clone() for k, v in selector.state_dict().items()}
    hidden, weight, labels, sample = batch(1)
    labels[3] = 40
    with pytest.raises(ValueError, match=r"labels: got 40 at position 3 \(sample 0\)"):
        compiled(selector, hidden, weight, labels, sample)
    hidden, weight, labels, sample = batch(1)
    hidden[6] = torch.nan
    labels[6] = 0
    with pytest.raises(ValueError, match=r"gram: the gradients of samples \[1\] are not finite"):
        compiled(selector, hidden, weight, labels, sample)
    assert all(torch.equal(selector.state_dict()[k], v) for k, v in before.items())


class Scoring(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.selector = oasis.Selector(0.5, seed=3)

    def forward(self, hidden, weight, labels, sample):
        return scored("ghost")(self.selector, hidden, weight, labels, sample)


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_has_the_operators_and_reads_nothing(strict):
    program = torch.export.export(Scoring(), tuple(batch(0)), strict=strict)
    called = [
        node.target
        for module in program.graph_module.modules()
        for node in module.graph.nodes
        if node.op == "call_function"
    ]
    ours = [target for target in called if "oasis" in str(target)]
    assert [str(target).split(".")[1] for target in ours] == ["head_gram", "select_"]
    reads = (
        "aten.item",
        "_local_scalar_dense",
        "nonzero",
        "_assert",
        "_to_copy",
        "unique",
        "bincount",
    )
    assert not [t for t in called if any(name in str(t) for name in reads)]
    module, eager = program.module(), Scoring()
    for seed in range(3):
        assert torch.equal(module(*batch(seed)), eager(*batch(seed)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("method", ["ghost", "auto"])
def test_shapes_alone_are_enough(device, method):
    selector = oasis.Selector(0.5, remember=4)
    with FakeTensorMode():
        for name, buffer in selector.named_buffers():  # torch without CUDA moves nothing there
            fake = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
            setattr(selector, name, fake)
        hidden, weight = torch.empty(30, 8, device=device), torch.empty(50, 8, device=device)
        labels, sample = torch.empty(2, 30, dtype=torch.int64, device=device)
        head = oasis.head_gram(hidden, weight, labels, sample, num_samples=5, method=method)
        selection = selector.select(gram=head)
    assert selection.mask.shape == (5,) and selection.mask.device.type == device
