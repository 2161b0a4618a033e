"""Signals of a batch against what each row gives alone, without padding."""

import pytest
import torch
import torch.nn.functional as F
from comparing import close
from padded_rows import alone
from tiny_models import LINEAR, tiny_llama, tiny_model, with_lora
from tiny_training import Pad, Rows

import oasis
from oasis import policies
from oasis.gram.regimes import folded, ghost
from oasis.train.batch.columns import TASK
from oasis.train.frozen.blocks import middle_block, running_blocks
from oasis.train.head import Head
from oasis.train.models import unwrap
from oasis.train.scoring import inspect_head
from oasis.train.signals.compute import HEAD, compute
from oasis.train.signals.sample_grads import SampleGradients
from oasis.train.signals.sketch import CountSketch


def rows(count=16, side="left", seed=3):
    """`count` rows of 4 to 12 tokens with 1 to 3 labels."""
    batch = Pad(side)(Rows(count, seed).items)
    del batch[TASK]
    return batch


def grads_alone(model, batch, parameters):
    """[N, P] float64: gradients of the mean loss, one forward and backward pass for each row."""
    out = []
    for row in range(len(batch["labels"])):
        one = alone(batch, row)
        logits = model.eval()(**one, use_cache=False).logits
        labels = one["labels"][0, 1:]
        if (labels != -100).any():
            loss = F.cross_entropy(logits[0, :-1], labels)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        else:
            grads = [None] * len(parameters)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads)]  # noqa: B905
        out.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(out)


def trained(module):
    return [p for p in module.parameters() if p.requires_grad]


# ---- gradients ----


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_equal_sixteen_backward_passes(side):
    model, batch = with_lora(tiny_model(), LINEAR), rows(side=side)
    batch["labels"][5] = -100
    expected = CountSketch()(grads_alone(model, batch, trained(model)))
    keep = SampleGradients()
    got = compute(model, batch, Head(), frozenset({"full_grads"}), grads=keep)["full_grads"]
    assert got.shape == (16, 8192) and got.dtype == torch.float32
    assert all(close(got[row], expected[row]) for row in range(16))
    assert (got[5] == 0).all() and (got[4] != 0).any()
    assert not keep._wrong and len(keep._right) == 2 * 2 * 7  # no loop was needed


def test_middle_gradients_are_those_of_one_block():
    model = with_lora(tiny_model(num_hidden_layers=5), layers_to_transform=[1, 2, 3])
    batch = rows(4)
    middle = running_blocks(model)[2]
    assert middle_block(model) is middle
    inside = {id(p) for p in middle.parameters()}
    grads = [grads_alone(model, batch, [p]) * (id(p) in inside) for p in trained(model)]
    expected = CountSketch()(torch.cat(grads, dim=1))
    got = compute(model, batch, Head(), frozenset({"middle_grads", "full_grads"}))
    assert close(got["middle_grads"], expected)
    assert not close(got["full_grads"], expected, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"use_dora": True},
        {"modules_to_save": ["lm_head", "norm"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"trainable_token_indices": [3, 4, 5, 6]},
    ],
)
def test_weights_that_hooks_cannot_see_fall_back_to_a_loop(change):
    targets = change.pop("target_modules", ["q_proj"])
    model, batch = with_lora(tiny_model(), targets, **change), rows(6)
    expected = CountSketch()(grads_alone(model, batch, trained(model)))
    got = compute(model, batch, inspect_head(model, batch), frozenset({"full_grads"}))
    assert close(got["full_grads"], expected)


def test_a_weight_used_outside_of_its_layer_is_noticed():
    model, batch = with_lora(tiny_model(), ["q_proj"]), rows(6)
    a, b = (block.self_attn.q_proj.lora_A["default"] for block in running_blocks(model))
    # The first layer's matrix also takes part in the second's, where no hook on it is called.
    forward = type(b).forward
    b.forward = lambda x: forward(b, x) + F.linear(x, a.weight)
    keep = SampleGradients()
    expected = CountSketch()(grads_alone(model, batch, trained(model)))
    for _ in range(2):
        got = compute(model, batch, Head(), frozenset({"full_grads"}), grads=keep)["full_grads"]
        assert close(got, expected)
    assert len(keep._wrong) == 1 and len(keep._right) == 3


def test_half_precision_needs_no_loop():
    model, batch = with_lora(tiny_model(dtype=torch.float32), LINEAR), rows(8)
    keep = SampleGradients()
    exact = compute(model, batch, Head(), frozenset({"full_grads"}))["full_grads"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = compute(model, batch, Head(), frozenset({"full_grads"}), grads=keep)["full_grads"]
    assert not keep._wrong and close(got, exact, 0.05)


def test_a_sample_that_is_not_finite_spoils_no_other():
    model, batch = with_lora(tiny_model(), LINEAR), rows(6)
    with torch.no_grad():
        unwrap(model).get_input_embeddings().weight[7] = float("nan")
    batch["input_ids"][batch["input_ids"] == 7] = 8
    clean = compute(model, batch, Head(), frozenset({"full_grads", "features"}))
    batch["input_ids"][2, -4] = 7
    keep = SampleGradients()
    got = compute(model, batch, Head(), frozenset({"full_grads", "features"}), grads=keep)
    rest = [0, 1, 3, 4, 5]
    for name in ("full_grads", "features"):
        assert torch.allclose(got[name][rest], clean[name][rest])
        assert not got[name][2].isfinite().all()
    assert not keep._wrong


def test_without_trained_weights():
    model = tiny_model().requires_grad_(False)
    for name in ("full_grads", "middle_grads"):
        with pytest.raises(ValueError, match="no trainable weight"):
            compute(model, rows(2), Head(), frozenset({name}))


# ---- the Gram matrix of the last block ----

LAST = frozenset({"gram"})


@pytest.mark.parametrize(
    ("side", "change", "loops"),
    [("left", {}, False), ("right", {}, False), ("left", {"use_dora": True}, True)],
)
def test_the_last_block_gram_is_that_of_sixteen_backward_passes(side, change, loops):
    model, batch = with_lora(tiny_model(), LINEAR, **change), rows(side=side)
    batch["labels"][5] = -100
    block = running_blocks(model)[-1]
    inside = {id(p) for p in block.parameters()}
    grads = [grads_alone(model, batch, [p]) for p in trained(model) if id(p) in inside]
    expected = oasis.grad_gram(grads)
    assert expected.dtype == torch.float64 and expected[4, 4] > 0
    norms = expected.diagonal().sqrt()
    # Rotary angles are float32, so padding on the left is felt.
    limit = (1e-6 if side == "left" else 1e-12) * norms.outer(norms)
    keep = SampleGradients()
    for _ in range(2):  # the second time nothing has to be found out
        got = compute(model, batch, Head(), LAST, grads=keep, layer="last_block")["gram"]
        assert ((got - expected).abs() <= limit).all()
        assert (got[5] == 0).all()
    assert len(keep._right) == (0 if loops else 2 * 7)
    head = compute(model, batch, Head(), LAST)["gram"]
    assert not torch.allclose(got, head, rtol=0.1)


def test_the_last_block_gram_beside_validation_rows_and_signals_of_the_head():
    model, batch = with_lora(tiny_model(), LINEAR), rows(7)
    needs = frozenset({"gram", "validation", "loss", "full_grads"})
    got = compute(model, batch, Head(), needs, 5, layer="last_block")
    whole = compute(model, batch, Head(), LAST, layer="last_block")["gram"]
    assert torch.allclose(got["gram"], whole[:5, :5], rtol=1e-9)
    assert torch.allclose(got["validation_gram"], whole[:5, 5:], rtol=1e-9)
    plain = compute(model, batch, Head(), frozenset({"loss", "full_grads"}))
    assert torch.equal(got["loss"], plain["loss"][:5])
    assert torch.allclose(got["full_grads"], plain["full_grads"][:5])
    # A head that cannot be scored by is in nobody's way where nothing is asked of it.
    broken = Head(error="this head is broken")
    compute(model, batch, broken, LAST, layer="last_block")
    with pytest.raises(ValueError, match="this head is broken"):
        compute(model, batch, broken, LAST | {"loss"}, layer="last_block")


def test_no_label_anywhere_gives_a_last_block_gram_of_zeros():
    model, batch = with_lora(tiny_model(), LINEAR), rows(3)
    batch["labels"][:] = -100
    got = compute(model, batch, Head(), LAST, layer="last_block")["gram"]
    assert got.shape == (3, 3) and got.dtype == torch.float64 and (got == 0).all()


def test_a_last_block_without_trained_weights_is_named():
    model = with_lora(tiny_model(), layers_to_transform=[0])
    with pytest.raises(ValueError, match="layer: got 'last_block', but no weight"):
        compute(model, rows(2), Head(), LAST, layer="last_block")


def test_a_sample_that_is_not_finite_spoils_no_other_products():
    model, batch = with_lora(tiny_model(), LINEAR), rows(6)
    with torch.no_grad():
        unwrap(model).get_input_embeddings().weight[7] = float("nan")
    batch["input_ids"][batch["input_ids"] == 7] = 8
    clean = compute(model, batch, Head(), LAST, layer="last_block")["gram"]
    batch["input_ids"][2, -4] = 7
    got = compute(model, batch, Head(), LAST, layer="last_block")["gram"]
    rest = [0, 1, 3, 4, 5]
    assert torch.allclose(got[rest][:, rest], clean[rest][:, rest])
    assert not got[2, 2].isfinite()


# ---- sketches ----


def test_a_sketch_is_that_of_the_row_alone_and_keeps_inner_products():
    model, batch = tiny_llama(), rows(7)
    batch["labels"][5] = -100
    got = compute(model, batch, Head(), frozenset({"gram", "sketch"}), 6)
    assert got["sketch"].shape == (6, 512) and got["sketch"].dtype == torch.float64
    for row in (0, 2):  # in another batch
        own = compute(model, alone(batch, row), Head(), frozenset({"sketch"}))
        assert set(own) == {"sketch"}
        assert close(own["sketch"][0], got["sketch"][row])
    norms = got["gram"].diagonal().sqrt()
    error = got["sketch"] @ got["sketch"].T - got["gram"]
    assert (error.abs() <= 6 * (2 / 512) ** 0.5 * norms.outer(norms)).all()
    assert (got["sketch"][5] == 0).all() and norms[0] > 0


def test_a_last_block_sketch_is_of_its_own_gradients():
    model, batch = with_lora(tiny_model(), LINEAR), rows()
    batch["labels"][5] = -100
    block = running_blocks(model)[-1]
    inside = {id(p) for p in block.parameters()}
    mask = [torch.full((p.numel(),), float(id(p) in inside)) for p in trained(model)]
    expected = CountSketch(512)(grads_alone(model, batch, trained(model)) * torch.cat(mask))
    needs = LAST | {"sketch"}
    got = compute(model, batch, Head(), needs, layer="last_block")
    limit = 1e-5 * expected.norm(dim=1, keepdim=True)  # left padding is felt
    assert ((got["sketch"] - expected).abs() <= limit).all() and expected[4].norm() > 0
    assert got["sketch"].dtype == torch.float64
    batch["labels"][:] = -100
    got = compute(model, batch, Head(), needs, layer="last_block")["sketch"]
    assert got.shape == (16, 512) and (got == 0).all()


def test_no_sketch_is_made_where_none_is_needed(monkeypatch):
    asked, whole = [], oasis.head_gram
    monkeypatch.setattr(
        oasis, "head_gram", lambda *a, **k: asked.append(k["sketch"]) or whole(*a, **k)
    )
    model, batch = tiny_llama(), rows(4)
    for needs in ({"gram"}, {"loss"}, {"gram", "sketch"}):
        compute(model, batch, Head(), frozenset(needs))
    assert asked == [0, 0, 512]


# ---- features ----


# ---- what is computed, and what is left behind ----


def test_only_what_is_needed_is_computed(monkeypatch):
    model, batch = tiny_llama(), rows(4)
    forwards, grams, backwards = [], [], []
    model.register_forward_hook(lambda *args: forwards.append(1))
    head_gram, grad = oasis.head_gram, torch.autograd.grad
    monkeypatch.setattr(oasis, "head_gram", lambda *a, **k: grams.append(1) or head_gram(*a, **k))
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: backwards.append(1) or grad(*a, **k)
    )
    for needs, expected in [
        ({"features", "features_multi", "image_text_score"}, (1, 0, 0)),
        ({"loss", "entropy", "features"}, (1, 1, 0)),
        ({"middle_grads", "loss", "entropy", "el2n"}, (1, 1, 1)),
        ({"full_grads"}, (1, 0, 1)),
    ]:
        for calls in (forwards, grams, backwards):
            calls.clear()
        found = compute(model, batch, inspect_head_once(model, batch), frozenset(needs))
        assert (len(forwards), len(grams), len(backwards)) == expected
        assert set(found) == needs


def test_metrics_alone_take_no_products_of_tokens_over_the_vocabulary(monkeypatch):
    model, batch = tiny_llama(vocab_size=4000), rows(16)
    batch["labels"] = batch["input_ids"].clone()
    whole = compute(model, batch, Head(), HEAD - {"validation"})
    kinds, add = [], folded.add_lower_products
    for regime in (ghost, folded):
        monkeypatch.setattr(
            regime, "add_lower_products", lambda a, b: kinds.append(b.shape[1]) or add(a, b)
        )
    for needs in ({"loss"}, {"entropy", "el2n"}, {"loss", "sketch"}):
        got = compute(model, batch, Head(), frozenset(needs))
        assert set(got) == needs and all(close(got[name], whole[name]) for name in needs)
    assert kinds and max(kinds) < 2000
    kinds.clear()
    compute(model, batch, Head(), frozenset({"loss", "gram"}))
    assert sum(kinds) >= 4000


def test_the_last_block_takes_no_product_of_the_head(monkeypatch):
    model, batch = tiny_llama(), rows(4)
    monkeypatch.setattr(oasis, "head_gram", lambda *a, **k: pytest.fail("the head was scored"))
    compute(model, batch, Head(verified=True), LAST, layer="last_block")


def inspect_head_once(model, batch):
    return Head(verified=True)


def test_everything_is_left_as_it_was():
    model, batch = tiny_llama(attention_dropout=0.5), rows(4)
    model.train()
    running_blocks(model)[0].eval()
    modes = [m.training for m in model.modules()]
    hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    for index, parameter in enumerate(trained(model)):
        parameter.grad = None if index % 2 else torch.full_like(parameter, 3.0)
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    needs = policies.SIGNALS - {"image_text_score"}
    a, b = (compute(model, batch, Head(), needs) for _ in range(2))
    assert torch.equal(torch.rand(()), expected)
    assert [m.training for m in model.modules()] == modes
    assert [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()] == hooks
    for index, parameter in enumerate(trained(model)):
        assert parameter.grad is None if index % 2 else (parameter.grad == 3).all()
    assert all(torch.equal(a[name], b[name]) for name in a if a[name] is not None)
    assert all(not value.requires_grad for value in a.values() if value is not None)


def test_under_ddp_the_next_training_step_is_undisturbed(tmp_path):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, batch = tiny_llama(), rows(4)
        wrapped = DistributedDataParallel(model)
        plain = compute(model, batch, Head(), frozenset({"full_grads", "gram"}))
        for _ in range(2):
            got = compute(wrapped, batch, Head(), frozenset({"full_grads", "gram"}))
            assert all(torch.allclose(got[name], plain[name]) for name in plain)
            wrapped(**batch).loss.backward()
        assert all(p.grad.abs().sum() > 0 for p in trained(model))
    finally:
        dist.destroy_process_group()
