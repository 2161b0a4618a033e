"""Whose loss is trained with: the trainer's own on the selected rows, never another instead."""

import pytest
import torch
from tiny_models import tiny_llama, tiny_model
from tiny_sft import SelectingSFT, SFTInOrder, sft_rows, sft_trainer
from tiny_training import Fixed, InOrder, KeepGradients, Pad, Rows, arguments
from transformers import Trainer

from oasis import policies
from oasis.train import SelectionMixin, SelectionTrainer
from oasis.train.batch.columns import TASK

MASKS = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]]  # the second is nothing, of which a mean is NaN


def masks():
    return [torch.tensor(mask, dtype=torch.bool) for mask in MASKS]


def focal(logits, labels):
    where = labels[:, 1:] != -100
    log = logits[:, :-1][where].log_softmax(dim=-1).gather(1, labels[:, 1:][where].unsqueeze(1))
    return ((1 - log.exp()) ** 2 * -log).mean()


class Focal(Trainer):
    """A mean over the label tokens of each micro-batch."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["input_ids"], attention_mask=inputs["attention_mask"])
        loss = focal(outputs.logits, inputs["labels"])
        return (loss, outputs) if return_outputs else loss


class SelectingFocal(SelectionMixin, Focal):
    pass


class FocalSelecting(SelectionTrainer):
    loss_is_scaled_for_ga = False
    compute_loss = Focal.compute_loss


class FocalInOrder(Focal, InOrder):
    pass


def mean_loss(outputs, labels, num_items_in_batch=None):
    return focal(outputs.logits, labels)


def run(path, cls, model, batches=None, **options):
    """Gradients of a step of three micro-batches, or of the given ones, and its loss."""
    keep, seen = KeepGradients(), []
    steps = {"gradient_accumulation_steps": len(batches or MASKS), "max_steps": 1}
    if batches is None:
        options["policy"] = Fixed(masks())
    else:
        options["batches"] = batches
    trainer = cls(
        model=model,
        args=arguments(path, **steps),
        train_dataset=Rows(48),
        data_collator=Pad(),
        callbacks=[keep],
        **options,
    )
    if batches is None:
        select = trainer._select
        trainer._select = lambda batch: seen.append(dict(batch)) or select(batch)
    loss = trainer.train().training_loss
    return keep.steps[0], loss, seen


def selected_of(seen):
    pairs = zip(seen, masks(), strict=True)
    return [{k: v[m] for k, v in batch.items() if k != TASK} for batch, m in pairs if m.any()]


def assert_same(ours, theirs, tolerance=1e-6):
    assert ours[1] == pytest.approx(theirs[1], rel=tolerance)
    compared = 0
    for name, expected in theirs[0].items():
        if expected is not None:
            compared += 1
            got = ours[0][name]
            assert (got - expected).norm() <= tolerance * expected.norm() > 0, name
    assert compared


@pytest.mark.shows(
    "Losses",
    "`compute_loss` of a trainer behind or a class before the mixin (focal loss)",
    "works: called on the selected rows",
)
@pytest.mark.parametrize("cls", [SelectingFocal, FocalSelecting])
def test_a_loss_of_the_trainers_own_is_that_of_the_selected_rows(tmp_path, cls):
    ours = run(tmp_path, cls, tiny_llama())
    theirs = run(tmp_path, FocalInOrder, tiny_llama(), selected_of(ours[2]))
    assert_same(ours, theirs)


@pytest.mark.shows(
    "Losses", "`compute_loss_func`, a mean too", "works: nothing selected is a loss of 0"
)
def test_a_mean_over_nothing_is_nothing(tmp_path):
    ours = run(tmp_path, SelectionTrainer, tiny_llama(), compute_loss_func=mean_loss)
    theirs = run(tmp_path, InOrder, tiny_llama(), selected_of(ours[2]), compute_loss_func=mean_loss)
    assert_same(ours, theirs)


@pytest.mark.shows(
    "Losses", "balancing loss of a router's experts (`output_router_logits`)", "works: added"
)
@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe"])
def test_the_balance_of_experts_is_part_of_the_loss(tmp_path, kind):
    def model():
        experts = {"num_experts_per_tok": 1, "moe_intermediate_size": 16}
        experts |= {"num_local_experts": 3, "num_experts": 3}
        coefficient = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
        return tiny_model(kind, dtype=torch.float32, **experts, **coefficient)

    ours = run(tmp_path, SelectionTrainer, model())
    theirs = run(tmp_path, InOrder, model(), selected_of(ours[2]))
    assert_same(ours, theirs, 1e-5)  # in float32, as the products of experts are


def metrics(trainer):
    names = ("loss", "entropy", "mean_token_accuracy", "num_tokens")
    return [[log[name] for name in names] for log in trainer.state.log_history if "loss" in log]


@pytest.mark.shows("TRL", '`loss_type="dft"`, `loss_type="nll"`', "works: TRL's own loss")
@pytest.mark.shows(
    "TRL", "entropy, mean_token_accuracy, num_tokens", "logged, of what is trained on"
)
@pytest.mark.parametrize("loss_type", ["dft", "nll"])
def test_trl_trains_on_the_selected_rows_with_its_own_loss(tmp_path, loss_type):
    ours = sft_trainer(
        SelectingSFT, tmp_path, tiny_llama(), policy=Fixed(masks()), loss_type=loss_type
    )
    seen, select = [], ours._select
    ours._select = lambda batch: seen.append(dict(batch)) or select(batch)
    loss = ours.train().training_loss
    plain = sft_trainer(SFTInOrder, tmp_path, tiny_llama(), loss_type=loss_type, max_steps=2)
    plain.batches = selected_of(seen)
    assert loss == pytest.approx(plain.train().training_loss, rel=1e-6)
    assert metrics(ours) == [pytest.approx(line, rel=1e-6) for line in metrics(plain)]
    theirs = plain.model.state_dict()
    for name, value in ours.model.state_dict().items():
        assert (value - theirs[name]).abs().max() < 1e-2 * 1e-3, name  # of a step's size


@pytest.mark.shows(
    "Losses", "a policy with weights (`infobatch`) and a loss of the trainer's own", "refused"
)
def test_weights_and_a_loss_that_cannot_see_them(tmp_path):
    policy = policies.create("infobatch", 0.5, 0)
    trainer = sft_trainer(SelectingSFT, tmp_path, tiny_llama(), policy=policy, max_steps=20)
    with pytest.raises(ValueError, match="the loss of SFTTrainer cannot see"):
        trainer.train()


def test_losses_are_means_over_the_steps_that_trained(tmp_path):
    def train(rows):
        trainer = SelectionTrainer(
            model=tiny_llama(),
            args=arguments(tmp_path, max_steps=len(rows)),
            train_dataset=Rows(48),
            data_collator=Pad(),
            policy=Fixed([torch.tensor(row, dtype=torch.bool) for row in rows]),
        )
        output = trainer.train()
        logged = [log["train_loss"] for log in trainer.state.log_history if "train_loss" in log]
        assert logged == [output.training_loss] == [output.metrics["train_loss"]]
        return output.training_loss

    assert train([MASKS[0]]) == pytest.approx(train([MASKS[0], MASKS[1], MASKS[1]]), rel=1e-6)


@pytest.mark.shows("Columns", "text columns named task and item, with null", "works: left alone")
def test_text_columns_of_any_name_are_left_alone(tmp_path):
    data = sft_rows(24, task="product", item=None, other=["a", "b"])
    ours = sft_trainer(SelectingSFT, tmp_path, tiny_llama(), data, policy="full")
    plain = sft_trainer(SelectingSFT, tmp_path, tiny_llama(), policy="full")
    assert ours.train().training_loss == plain.train().training_loss

    def collate(rows):
        batch = Pad()([{"input_ids": torch.tensor(r["input_ids"]),
                        "labels": torch.tensor(r["labels"])} for r in rows])  # fmt: skip
        columns = {name: [row[name] for row in rows] for name in ("task", "other")}
        return {**batch, **columns, "item": None}

    trainer = SelectionTrainer(
        model=tiny_llama(),
        args=arguments(tmp_path, remove_unused_columns=False),
        train_dataset=data,
        data_collator=collate,
        policy="oasis",
    )
    assert trainer.train().global_step == 3
