"""Weights of samples in the training loss: what they multiply, and which are refused."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_llama
from tiny_training import Fixed, KeepGradients, selection_trainer


class Weighed(Fixed):
    """Selects the given masks with the given weights [N] (None: no weights)."""

    def __init__(self, masks, weights):
        super().__init__(masks)
        self.weights = weights

    def observe(self, signals):
        selection = super().observe(signals)
        return replace(selection, weight=self.weights[(self.at - 1) % len(self.masks)])


@pytest.mark.parametrize("side", ["left", "right"])
def test_weights_multiply_each_samples_summed_loss(tmp_path, side):
    masks = [torch.tensor(m, dtype=torch.bool) for m in ([1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0])]
    # What stands at samples that are not selected must not matter; the third batch has no weights.
    weights = [torch.tensor([0.25, float("nan"), 3.0, 0.0]), torch.zeros(4), None]
    events, keep, seen = [], KeepGradients(), []
    trainer = selection_trainer(
        tmp_path,
        tiny_llama(),
        Weighed(masks, weights),
        side,
        on_event=events.append,
        gradient_accumulation_steps=3,
        max_steps=1,
    )
    trainer.add_callback(keep)
    select = trainer._select
    trainer._select = lambda batch: seen.append(batch) or select(batch)
    trainer.train()

    # By hand: sample by sample through the plain model, without padding, all logits.
    reference, total, tokens = tiny_llama().train(), 0.0, 0
    for batch, mask, weight in zip(seen, masks, weights, strict=True):
        for i in mask.nonzero().flatten().tolist():
            real = batch["attention_mask"][i].bool()
            logits = reference(batch["input_ids"][i : i + 1, real]).logits[0].log_softmax(dim=-1)
            for t, label in enumerate(batch["labels"][i, real].tolist()):
                if label != -100 and t > 0:
                    factor = 1.0 if weight is None else float(weight[i])
                    total, tokens = total - factor * logits[t - 1, label], tokens + 1
    (total / tokens).backward()
    compared = 0
    for name, parameter in reference.named_parameters():
        if parameter.requires_grad:
            got, compared = keep.steps[0][name], compared + 1
            assert (got - parameter.grad).norm() <= 1e-9 * parameter.grad.norm() > 0, name
    assert compared == 8
    assert next(e for e in events if e["type"] == "step")["loss"] == pytest.approx(
        float(total.detach() / tokens), rel=1e-6
    )


def test_no_weights_and_weights_of_one(tmp_path):
    masks = [torch.tensor([1, 0, 1, 1], dtype=torch.bool)]
    grads = []
    for weight in (None, torch.ones(4)):
        keep = KeepGradients()
        trainer = selection_trainer(tmp_path, tiny_llama(), Weighed(masks, [weight]), max_steps=1)
        trainer.add_callback(keep)
        trainer.train()
        grads.append(keep.steps[0])
    for name, grad in grads[0].items():
        assert grad is None or torch.allclose(grad, grads[1][name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.tensor([1, -1.0, 1, 1]), torch.ones(4) / 0])
def test_bad_weights_are_refused(tmp_path, wrong):
    policy = Weighed([torch.ones(4, dtype=torch.bool)], [wrong])
    with pytest.raises(ValueError, match="'fixed': got weights"):
        selection_trainer(tmp_path, tiny_llama(), policy).train()


def test_weights_and_a_loss_function_of_ones_own_do_not_go_together(tmp_path):
    policy = Weighed([torch.ones(4, dtype=torch.bool)], [torch.ones(4)])
    trainer = selection_trainer(tmp_path, tiny_llama(), policy)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs.logits.sum()
    with pytest.raises(ValueError, match="compute_loss_func"):
        trainer.train()
