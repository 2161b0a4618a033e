"""Families with batches or logits of their own: scores by autograd, sub-batches, five steps."""

import pytest
import torch
import torch.nn.functional as F
from tiny_families import (
    FALCON,
    Family,
    causal,
    collate,
    embedded,
    filmed,
    framed,
    llava_next,
    mrope,
    pair,
    smolvlm,
    speech,
    t5,
    text,
    tiled,
    untied,
    whisper,
)
from tiny_models import with_lora
from tiny_training import Fixed, arguments
from tiny_vision import qwen

from oasis.names import IGNORED
from oasis.train import SelectionTrainer
from oasis.train.batch.images import count_images, drop_empty_images
from oasis.train.batch.rehearsal import join
from oasis.train.batch.rows import as_given, as_rows
from oasis.train.batch.subbatch import take, targets
from oasis.train.fill import apart
from oasis.train.loss import summed_cross_entropy
from oasis.train.scoring import inspect_head, score

FAMILIES = {
    "T5": Family(t5, pair, ("q", "v"), decoder=True),
    "Whisper": Family(whisper, speech, decoder=True),
    "Falcon-H1 (`lm_head_multiplier`)": Family(causal("falcon_h1", **FALCON), text, tolerance=1e-5),
    "HyperCLOVA X (`logits_scaling`, a factor)": Family(
        causal("hyperclovax", logits_scaling=0.5), text
    ),
    "RecurrentGemma (`logits_soft_cap`)": Family(
        causal("recurrent_gemma", num_hidden_layers=3, logits_soft_cap=3.0, lru_width=32),
        text,
        tolerance=1e-5,
    ),
    "`inputs_embeds` in place of `input_ids`": Family(causal("llama"), embedded),
    "`position_ids` [3, N, L] (M-RoPE of Qwen-VL)": Family(lambda: untied(qwen()), mrope),
    "videos of Qwen-VL": Family(lambda: untied(qwen()), filmed, tolerance=1e-5),
    "several images of any size (LLaVA-NeXT)": Family(llava_next, tiled, tolerance=1e-5),
    "images of Idefics 3, SmolVLM": Family(smolvlm, framed, tolerance=1e-5),
}


def by_autograd(model, family, items):
    """Gram matrix and mean losses from gradients of the head's weight, each item alone."""
    weight = model.get_output_embeddings().weight.requires_grad_()
    grads, losses = [], []
    for item in items:
        batch = drop_empty_images(collate([item]))
        labels = batch["labels"][0]
        logits = model(**batch, use_cache=False).logits[0]
        if not family.decoder:
            logits, labels = logits[:-1], labels[1:]
        losses.append(F.cross_entropy(logits, labels))
        grads.append(torch.autograd.grad(losses[-1], weight)[0].flatten())
    grads = torch.stack(grads)
    return grads @ grads.T, torch.stack(losses).detach()


def rows_of(model, batch):
    return count_images(as_rows(model, batch), model.config)


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_and_sub_batches_equal_autograd_on_each_item_alone(name):
    family = FAMILIES[name]
    model, items = family.make(), [family.item(number) for number in range(6)]
    sides = ("right",) if family.decoder else ("right", "left")
    gram, loss = by_autograd(model, family, items)
    for side in sides:
        batch = rows_of(model, collate(items, side))
        head = inspect_head(model, batch)
        assert head.verified and head.gather and head.error is None
        got = score(model, batch, head)
        assert (got.gram - gram).abs().max() <= family.tolerance * gram.max()
        assert (got.loss - loss).abs().max() <= family.tolerance * loss.max()
        for chosen in ([0, 3], [4, 1, 2], [5]):  # 0 and 3 have no image
            cut = take(batch, chosen)
            count = targets(cut["labels"]).sum(dim=1)
            summed = summed_cross_entropy(model, cut)[0]
            expected = (loss[chosen] * count).sum()
            assert (summed - expected).abs() <= family.tolerance * expected


@pytest.mark.parametrize("name", FAMILIES)
def test_five_steps_of_lora(tmp_path, name):
    family = FAMILIES[name]
    model = with_lora(family.make(), family.targets)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    trainer = SelectionTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=5, remove_unused_columns=False, seed=3),
        train_dataset=[family.item(number) for number in range(20)],
        data_collator=collate,
        policy="oasis",
        ratio=0.5,
        mode="fill" if name in ("T5", "videos of Qwen-VL") else "step",
    )
    trainer.train()
    assert trainer.selection_counts.selected > 0 == trainer.selection_counts.skipped
    moved = {key for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert moved and all("lora_" in key for key in moved)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "name",
    [
        "images of Idefics 3, SmolVLM",
        "several images of any size (LLaVA-NeXT)",
        "videos of Qwen-VL",
    ],
)
def test_rows_that_waited_keep_their_own_images(name):
    family = FAMILIES[name]
    model, items = family.make(), [family.item(number) for number in range(6)]
    loss = by_autograd(model, family, items)[1]
    rows = apart(rows_of(model, collate(items)))
    for first, *rest in ([0, 1, 3, 2], [4, 5, 0, 1], [3, 0]):  # 0 and 3 have no image
        joined = join(rows[first], [rows[row] for row in rest])
        count = targets(joined["labels"]).sum(dim=1)
        expected = (loss[[first, *rest]] * count).sum()
        summed = summed_cross_entropy(model, joined)[0]
        assert (summed - expected).abs() <= family.tolerance * expected


def test_text_alone_of_a_batch_with_images_is_trained_on(tmp_path):
    family = FAMILIES["images of Idefics 3, SmolVLM"]
    model = with_lora(family.make(), family.targets)
    trainer = SelectionTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=1, remove_unused_columns=False),
        train_dataset=[family.item(number) for number in (0, 1, 3, 2)],
        data_collator=lambda items: collate([family.item(n) for n in (0, 1, 3, 2)]),
        policy=Fixed([torch.tensor([True, False, True, False])]),
    )
    assert trainer.train().training_loss > 0


def test_an_encoder_decoder_is_given_what_it_was_given():
    family = FAMILIES["T5"]
    model, items = family.make(), [family.item(number) for number in range(4)]
    batch = collate(items)
    rows = as_rows(model, batch)
    assert rows["labels"].shape == rows["input_ids"].shape == (4, batch["labels"].shape[1] + 1)
    assert as_rows(model, rows) is rows
    back = as_given(rows)
    assert back.keys() == {*batch, "decoder_input_ids"}
    assert all(torch.equal(back[key], value) for key, value in batch.items())
    own = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    assert torch.equal(back["decoder_input_ids"], own)
    given = as_given(as_rows(model, {**batch, "decoder_input_ids": own + 1}))
    assert torch.equal(given["decoder_input_ids"], own + 1)
    loss, count, output = summed_cross_entropy(model, batch, gather=False)
    assert output.logits.shape[:2] == batch["labels"].shape
    wanted = batch["labels"].flatten()
    assert torch.allclose(
        loss, F.cross_entropy(output.logits.flatten(0, 1), wanted, reduction="sum")
    )
    assert count == (batch["labels"] != IGNORED).sum()
    with pytest.raises(ValueError, match="decoder_inputs_embeds"):
        as_rows(model, {**batch, "decoder_inputs_embeds": torch.zeros(4, 5, 32)})


def test_an_encoder_as_long_as_the_row_is_no_row():
    model = FAMILIES["T5"].make()
    labels = torch.tensor([[5, 6, 7, -100, -100], [8, -100, -100, -100, -100]])
    ids = torch.tensor([[9, 8, 7, 6, 5, 4], [0, 0, 0, 3, 4, 5]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
    rows = as_rows(model, batch)
    assert rows["labels"].shape == ids.shape
    back = as_given(take(rows, [1, 0]))
    assert torch.equal(back["input_ids"], ids[[1, 0]])
    assert torch.equal(back["labels"], labels[[1, 0], :3])


def test_rows_of_different_encoders_are_padded_together():
    family = FAMILIES["T5"]
    model = family.make()
    apart = [take(as_rows(model, collate([family.item(n)])), [0]) for n in range(4)]
    together = summed_cross_entropy(model, join(apart[0], apart[1:]))[0]
    assert torch.allclose(together, sum(summed_cross_entropy(model, one)[0] for one in apart))


@pytest.mark.shows(
    "Families of models",
    "images of any size, several of a sample with nothing between them",
    "refused, unless the collator counts them (`oasis_num_images`)",
)
def test_images_that_stand_together_are_not_counted():
    family = FAMILIES["several images of any size (LLaVA-NeXT)"]
    config = family.make().config
    batch = collate([family.item(number) for number in (2, 0, 1)])
    assert count_images(batch, config)["oasis_num_images"].tolist() == [2, 0, 1]
    ids = batch["input_ids"]
    ids[0, ids[0] == 4] = ids[0].max()  # what stood between them
    with pytest.raises(ValueError, match="3 images for samples with .*oasis_num_images"):
        count_images(batch, config)
