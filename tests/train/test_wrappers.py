"""What is put around a model: found through, scored without it, trained with it."""

from functools import partial

import pytest
import torch
from tiny_models import tiny_llama, tiny_model
from tiny_training import Fixed, selection_trainer
from torch import nn
from torch.nn.parallel import DataParallel

from oasis.train.batch.columns import TASK
from oasis.train.head import Head
from oasis.train.models import is_compiled, unwrap
from oasis.train.scoring import inspect_head, score
from oasis.train.signals.compute import compute


class Engine(nn.Module):
    """As DeepSpeed's: it holds the model as `module` and answers for it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def compiled(model):
    return torch.compile(model, backend="eager")


def in_place(model):
    model.compile(backend="eager")
    return model


WRAPPERS = {
    "engine": Engine,
    "compile": compiled,
    "compiled engine": lambda model: compiled(Engine(model)),
    "engine of a compiled model": lambda model: Engine(compiled(model)),
    "parallel": DataParallel,
}


def batch():
    ids = torch.randint(1, 61, (3, 9), generator=torch.Generator().manual_seed(4))
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_the_model_inside_is_found_and_scored(wrap):
    model = tiny_llama()
    wrapped = WRAPPERS[wrap](model)
    assert unwrap(wrapped) is model
    expected = score(model, batch(), Head())
    got = score(wrapped, batch(), inspect_head(wrapped, batch()))
    assert torch.equal(got.gram, expected.gram) and torch.equal(got.loss, expected.loss)


@pytest.mark.shows("Wrappers", "`torch_compile=True`, a model compiled in place", "works")
@pytest.mark.parametrize("how", ["trainer", "in place"])
def test_a_compiled_model_trains_as_an_uncompiled_one(tmp_path, how):
    options = {"torch_compile": True, "torch_compile_backend": "eager"} if how == "trainer" else {}
    make = partial(tiny_model, num_hidden_layers=1)
    plain = selection_trainer(tmp_path, make(), "oasis", max_steps=2)
    expected = plain.train().training_loss
    model = make() if how == "trainer" else in_place(make())
    ours = selection_trainer(tmp_path, model, "oasis", max_steps=2, **options)
    assert ours.train().training_loss == pytest.approx(expected, rel=1e-6)
    assert is_compiled(ours.model_wrapped) and not is_compiled(plain.model_wrapped)
    assert ours.selection_counts == plain.selection_counts
    parameters = plain.model.state_dict()
    for name, value in unwrap(ours.model).state_dict().items():
        assert (value - parameters[name]).abs().max() < 1e-2 * 1e-3, name  # of a step's size


@pytest.mark.shows(
    "Wrappers",
    "a step of which nothing is selected, with any optimizer or engine (ZeRO-2)",
    "works: no forward, no backward, no parameter and no moment moves",
)
@pytest.mark.parametrize("optim", ["adamw_torch", "sgd", "rmsprop", "adagrad"])
def test_nothing_runs_in_a_step_without_a_selection(tmp_path, optim):
    masks = [torch.tensor([value] * 4, dtype=torch.bool) for value in (1, 0, 0)]
    options = {"optim": optim, "weight_decay": 0.1, "max_grad_norm": 1.0}
    trainer = selection_trainer(tmp_path, tiny_llama(), Fixed(masks), **options)
    backward, after = [], []
    original = trainer.accelerator.backward
    trainer.accelerator.backward = lambda *a, **k: backward.append(1) or original(*a, **k)
    step_end = trainer._step.end

    def watch():
        state = trainer.optimizer.state_dict()["state"]
        moments = [v.clone() for s in state.values() for v in s.values() if torch.is_tensor(v)]
        after.append([p.detach().clone() for p in trainer.model.parameters()] + moments)
        step_end()

    trainer._step.end = watch
    trainer.train()
    assert len(backward) == 1 and len(after) == 3
    for later in after[1:]:
        assert all(torch.equal(a, b) for a, b in zip(after[0], later, strict=True))
    plain = selection_trainer(tmp_path, tiny_llama(), Fixed(masks[:1]), max_steps=1, **options)
    plain.train()
    for a, b in zip(plain.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_scaler_passes_a_step_without_a_selection(tmp_path):
    masks = [torch.tensor([value] * 4, dtype=torch.bool) for value in (1, 0, 1)]
    trainer = selection_trainer(tmp_path, tiny_llama(dtype=torch.float32), Fixed(masks))
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)  # as with fp16
    plain = selection_trainer(tmp_path, tiny_llama(dtype=torch.float32), Fixed(masks))
    assert trainer.train().training_loss == pytest.approx(plain.train().training_loss, rel=1e-5)
    for a, b in zip(plain.model.parameters(), trainer.model.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-2 * 1e-2


def test_weights_that_no_gradient_reaches_are_refused():
    model, rows = tiny_llama(), batch()
    rows.pop(TASK, None)
    handle = model.get_output_embeddings().register_forward_hook(lambda m, a, out: out.detach())
    for needs, layer in (({"full_grads"}, "head"), ({"gram"}, "last_block")):
        with pytest.raises(ValueError, match="no gradient of any trained weight.*layer='head'"):
            compute(model, rows, Head(), frozenset(needs), layer=layer)
    handle.remove()
