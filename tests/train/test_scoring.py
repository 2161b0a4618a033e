"""Scores, loss and sub-batches against autograd and plain forwards."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from padded_rows import padded
from tiny_models import PAD, VOCAB, tiny_llama, tiny_model, with_lora
from torch import nn
from transformers import LlamaForCausalLM

from oasis.train.batch.columns import TASK
from oasis.train.batch.subbatch import dummy, take, targets
from oasis.train.head import Head, head_weight
from oasis.train.loss import summed_cross_entropy
from oasis.train.models import unwrap
from oasis.train.scoring import evaluating, inspect_head, score


def by_autograd(model, batch):
    """Gram matrix [N, N] and mean loss [N] from gradients of the head's weight, row by row, each
    alone and without padding."""
    weight = unwrap(model).get_output_embeddings().weight.requires_grad_()
    model.eval()
    grads, losses = [], []
    for row, real in enumerate(batch["attention_mask"].bool()):
        labels = batch["labels"][row, real]
        logits = model(input_ids=batch["input_ids"][row : row + 1, real], use_cache=False).logits[0]
        loss = F.cross_entropy(logits[:-1], labels[1:], reduction="sum")
        count = int((labels[1:] != -100).sum())
        loss = loss / max(count, 1)
        grads.append(torch.autograd.grad(loss, weight, retain_graph=True)[0].flatten())
        losses.append(loss.detach())
    grads = torch.stack(grads)
    return grads @ grads.T, torch.stack(losses)


def assert_scores(model, batch, head=None, tolerance=1e-10):
    gram, loss = by_autograd(model, batch)
    got = score(model, batch, head or inspect_head(model, batch))
    assert ((got.gram - gram).abs() <= tolerance * gram.diagonal().max()).all()
    assert (got.gram.diagonal() - gram.diagonal()).abs().le(tolerance * gram.diagonal()).all()
    assert torch.allclose(got.loss, loss, rtol=tolerance, atol=0)
    assert got.tokens.tolist() == [3, 1, 2, 0, 2]
    assert (got.gram[3] == 0).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_equal_autograd_on_the_head(side):
    assert_scores(tiny_llama(), padded(side))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("kind", "config", "scale", "softcap"),
    [
        ("gemma2", {"final_logit_softcapping": 1.5, "head_dim": 8}, 1.0, 1.5),
        ("cohere", {"logit_scale": 0.25}, 0.25, None),
        ("granite", {"logits_scaling": 8.0}, 0.125, None),
        ("gpt_neox", {}, 1.0, None),
    ],
)
def test_scaled_and_capped_logits(kind, config, scale, softcap, side):
    model, batch = tiny_model(kind, tie_word_embeddings=False, **config), padded(side)
    head = inspect_head(model, batch)
    assert head == Head(scale, softcap, gather=True, verified=True)
    assert_scores(model, batch, head)


def test_tied_embeddings_count_in_their_role_as_head():
    model = tiny_model("llama", tie_word_embeddings=True)
    batch = padded("right")
    head = model.get_output_embeddings()
    captured = []
    handle = head.register_forward_pre_hook(lambda m, args: captured.append(args[0].detach()))
    model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    # As though untied: the same hidden states through a copy of the weight.
    weight = head.weight.detach().clone().requires_grad_()
    logits = captured[0] @ weight.T
    losses = [
        F.cross_entropy(logits[row, :-1], batch["labels"][row, 1:], reduction="sum") / n
        for row, n in enumerate([3, 1, 2, 1, 2])
    ]
    grads = torch.stack(
        [torch.autograd.grad(x, weight, retain_graph=True)[0].flatten() for x in losses]
    )
    got = score(model, batch, inspect_head(model, batch)).gram
    assert torch.allclose(got, grads @ grads.T, rtol=1e-10, atol=1e-14)


def test_lora_on_the_head_is_merged():
    model = with_lora(tiny_model(), ["q_proj", "lm_head"])
    head = unwrap(model).get_output_embeddings()
    weight, bias = head_weight(head).whole(), head_weight(head).bias
    x = torch.randn(3, 32, dtype=torch.float64)
    assert bias is None and torch.allclose(x @ weight.T, head.eval()(x), rtol=1e-12)
    assert not torch.allclose(weight, head.base_layer.weight)
    batch = padded()
    assert inspect_head(model, batch).verified
    got = score(model, batch, inspect_head(model, batch)).gram
    expected, _ = by_autograd(model.merge_and_unload(), batch)
    assert torch.allclose(got, expected, rtol=1e-6)  # merging rounds, norms are float32


def test_a_head_saved_whole_is_scored_by_its_trained_copy():
    model = with_lora(tiny_model(), modules_to_save=["lm_head"])
    head = unwrap(model).get_output_embeddings()
    with torch.no_grad():
        head.modules_to_save["default"].weight.mul_(1.5)
    batch = padded()
    assert inspect_head(model, batch).error is None
    assert torch.equal(head_weight(head).whole(), head.modules_to_save["default"].weight)


def test_a_head_that_is_not_a_plain_matrix_is_refused():
    model = with_lora(tiny_model(), ["lm_head"], lora_bias=True)
    nn.init.ones_(unwrap(model).get_output_embeddings().lora_B["default"].bias)
    head = inspect_head(model, padded())
    assert head.gather and head.verified  # good enough to train on what is not scored
    with pytest.raises(ValueError, match="plain LoRA"):
        score(model, padded(), head)


class Shifted(LlamaForCausalLM):
    """Adds a ramp over positions to the logits; no configuration says so."""

    def forward(self, **kwargs):
        out = super().forward(**kwargs)
        ramp = torch.linspace(0, 3, out.logits.shape[1], dtype=out.logits.dtype)
        out.logits = out.logits + ramp[:, None] * torch.arange(VOCAB)
        return out


def test_unknown_logits_are_not_scored_and_not_gathered():
    model = tiny_model()
    model.__class__ = Shifted
    head = inspect_head(model, padded())
    assert not head.gather and "Shifted" in head.error
    with pytest.raises(ValueError, match="random, full"):
        score(model, padded(), head)


def test_rows_without_finite_logits_do_not_decide():
    model = tiny_model()
    batch = padded()
    with torch.no_grad():
        model.get_input_embeddings().weight[PAD + 5] = float("nan")
    for row in (0, 1):
        batch["input_ids"][row, -4:-1] = PAD + 5
        batch["labels"][row, -3:-1] = -100
    batch["input_ids"][2:][batch["input_ids"][2:] == PAD + 5] = 6
    assert inspect_head(model, batch).verified
    batch["input_ids"][:, -4:-1] = PAD + 5
    assert not inspect_head(model, batch).verified


def test_scoring_leaves_the_model_as_it_was():
    model = tiny_llama(attention_dropout=0.5)
    model.train()
    frozen = model.get_base_model().model.layers[1]
    frozen.eval()
    before = [m.training for m in model.modules()]
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    batch = padded()
    a, b = (score(model, batch, inspect_head(model, batch)).gram for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(torch.rand(()), expected)
    assert [m.training for m in model.modules()] == before
    assert not model.get_output_embeddings()._forward_pre_hooks
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert [m.training for m in model.modules()] == before


def test_no_logits_are_computed_while_scoring():
    model = tiny_llama()
    batch = padded()
    head = inspect_head(model, batch)
    sizes = []
    handle = model.get_output_embeddings().register_forward_hook(
        lambda module, args, out: sizes.append(out.numel())
    )
    score(model, batch, head)
    model.train()
    summed_cross_entropy(model, batch)
    handle.remove()
    assert sizes == [0, 8 * VOCAB]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_sum_over_label_tokens(side, gather, smoothing):
    model, batch = tiny_llama(), padded(side)
    loss, count, _ = summed_cross_entropy(model, batch, gather=gather, label_smoothing=smoothing)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = F.cross_entropy(
        logits[:, :-1].reshape(-1, VOCAB),
        batch["labels"][:, 1:].reshape(-1),
        reduction="sum",
        label_smoothing=smoothing,
    )
    assert count == 8
    parameters = [p for p in model.parameters() if p.requires_grad]
    for a, b in zip(
        [loss, *torch.autograd.grad(loss, parameters)],
        [expected, *torch.autograd.grad(expected, parameters)],
        strict=True,
    ):
        assert (a - b).norm() <= 1e-6 * b.norm()


@pytest.mark.parametrize("side", ["left", "right"])
def test_take_changes_nothing_but_padding(side):
    model, batch = tiny_model(), padded(side)
    batch[TASK] = torch.arange(5)
    cut = take(batch, [1, 4])
    assert cut["labels"].shape == (2, 5) and cut[TASK].tolist() == [1, 4]
    assert cut["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    whole = take({k: v for k, v in batch.items() if k != "attention_mask"}, [1, 4])
    whole["attention_mask"] = batch["attention_mask"][[1, 4]]
    assert whole["labels"].shape == (2, 13)
    a, b = (summed_cross_entropy(model, x)[0] for x in (cut, whole))
    assert torch.isclose(a, b, rtol=1e-6)
    assert batch["labels"].equal(padded(side)["labels"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_predicts_no_label(side):
    batch = padded(side)
    batch["labels"] = torch.where(batch["attention_mask"] == 1, batch["input_ids"], -100)
    cut = take(batch, [1, 4])
    assert cut["labels"].shape == (2, 5)
    assert targets(cut["labels"]).sum() == 4 + 2  # of five tokens and of three, but the first


def test_take_refuses_what_has_no_rows():
    with pytest.raises(ValueError, match="pixel_values"):
        take({**padded(), "pixel_values": torch.zeros(7, 3)}, [0])
    with pytest.raises(ValueError, match="name"):
        take({**padded(), "name": ["a"] * 4}, [0])


def test_take_cuts_lists_and_leaves_none():
    cut = take({**padded(), "name": list("abcde"), "other": None}, [3, 1])
    assert cut["name"] == ["d", "b"] and cut["other"] is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_dummy_has_zero_loss_and_zero_gradients(side):
    model = tiny_llama()
    row = dummy(padded(side), 2)
    assert row["input_ids"].shape == (1, 1) and row["attention_mask"].item() == 1
    loss, count, _ = summed_cross_entropy(model, row)
    loss.backward()
    assert loss == 0 and count == 0
    grads = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(g is not None and (g == 0).all() for g in grads)


def test_no_label_in_the_whole_batch():
    batch = padded()
    batch["labels"][:] = -100
    model = tiny_llama()
    head = inspect_head(model, batch)
    assert not head.verified
    got = score(model, batch, head)
    assert (got.gram == 0).all() and (got.tokens == 0).all()


def test_half_precision_and_autocast():
    model = tiny_model(dtype=torch.bfloat16)
    assert inspect_head(model, padded()).error is None
    model = tiny_model(dtype=torch.float32)
    exact = score(model, padded(), Head()).gram
    with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inspect_head(model, padded()).error is None
        rough = score(model, padded(), Head()).gram
    assert torch.allclose(rough, exact, rtol=0.2, atol=0.05 * float(exact.max()))
