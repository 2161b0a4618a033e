"""Vision-language models: scores, sub-batches and training with images of their own."""

import json

import pytest
import torch
import torch.nn.functional as F
from tiny_models import with_lora
from tiny_vision import IMAGE, MODELS, collate, sample
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainingArguments

from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.images import COUNTS, count_images, image_rows
from oasis.train.batch.subbatch import dummy, take
from oasis.train.loss import summed_cross_entropy
from oasis.train.models import unwrap
from oasis.train.scoring import inspect_head, score

# Images per sample. The second has as many images as samples, yet not one each.
SHAPES = {"one each": (1, 1, 1, 1, 1), "none or two": (2, 0, 1, 2, 0), "text only": (0, 0, 0)}


@pytest.fixture(scope="module", params=list(MODELS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    return MODELS[kind]()


def items(kind, images):
    return [sample(kind, count, seed) for seed, count in enumerate(images)]


def counted(model, batch):
    return count_images(batch, unwrap(model).config)


def autograd(model, kind, rows):
    """Last-layer gradients [N, V D] and mean losses [N], each sample collated and run alone."""
    weight = model.get_output_embeddings().weight
    grads, losses = [], []
    for row in rows:
        batch = collate([row], kind)
        labels = batch.pop("labels")
        logits = model(**batch).logits
        loss = F.cross_entropy(logits[0, :-1], labels[0, 1:])
        grads.append(torch.autograd.grad(loss, weight)[0].flatten())
        losses.append(loss.detach())
    return torch.stack(grads), torch.stack(losses)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_equal_autograd_sample_by_sample(kind, model, shape, side):
    rows = items(kind, SHAPES[shape])
    batch = counted(model, collate(rows, kind, side))
    head = inspect_head(model, batch)
    assert head.verified and head.error is None and head.gather
    grads, losses = autograd(model, kind, rows)
    got = score(model, batch, head)
    gram = grads @ grads.T
    # Norms and rotary angles are float32 inside, whatever the weights are.
    assert torch.allclose(got.gram, gram, rtol=1e-5, atol=1e-6 * float(gram.abs().max()))
    assert torch.allclose(got.gram.diagonal().sqrt(), grads.norm(dim=1), rtol=1e-5)
    assert torch.allclose(got.loss, losses, rtol=1e-5)


def test_the_images_matter_to_the_scores(kind, model):
    # Otherwise the tests here could not tell whose image is whose.
    batch = counted(model, collate(items(kind, SHAPES["one each"]), kind))
    head = inspect_head(model, batch)
    before = score(model, batch, head).loss
    batch["pixel_values"] = batch["pixel_values"].roll(1, dims=0)
    assert ((score(model, batch, head).loss - before).abs() > 1e-3).all()


@pytest.mark.parametrize("shape", ["one each", "none or two"])
@pytest.mark.parametrize("rows", [[0], [1], [3, 1], [4, 2, 0], [1, 4], [0, 1, 2, 3, 4]])
def test_a_sub_batch_is_the_batch_of_its_samples(kind, model, shape, rows):
    samples = items(kind, SHAPES[shape])
    batch = counted(model, collate(samples, kind, "left", width=40))
    cut = take(batch, rows)
    width = max(len(samples[row]["labels"]) for row in rows)
    alone = collate([samples[row] for row in rows], kind, "right", width=width)
    assert cut[COUNTS].tolist() == [SHAPES[shape][row] for row in rows]
    assert cut.keys() == {*alone, COUNTS}
    for key, value in alone.items():
        assert torch.equal(cut[key], value), key
    _, losses = autograd(model, kind, [samples[row] for row in rows])
    per_row = torch.tensor([sum(x != -100 for x in samples[row]["labels"]) for row in rows])
    loss, tokens, _ = summed_cross_entropy(model, cut)
    assert tokens == per_row.sum()
    assert torch.isclose(loss, (losses * per_row).sum(), rtol=1e-5)


def test_pixels_as_wide_as_the_text_is_long_are_not_cut():
    samples = items("qwen", (1, 2))
    batch = counted(MODELS["qwen"](), collate(samples, "qwen", width=96))
    assert batch["pixel_values"].shape[1] == batch["labels"].shape[1] == 96
    cut = take(batch, [0])
    assert torch.equal(cut["pixel_values"], samples[0]["pixels"][0])
    assert cut["labels"].shape[1] < 96


@pytest.mark.parametrize("images", [0, 1])
def test_a_dummy_has_zero_loss_and_zero_gradients(kind, images):
    model = MODELS[kind]()
    batch = counted(model, collate(items(kind, (1, images, 1)), kind))
    row = dummy(batch, 1)
    assert ("pixel_values" in row) == bool(images)
    assert (row["input_ids"].shape[1] == 1) == (images == 0)
    loss, count, _ = summed_cross_entropy(model, row)
    loss.backward()
    grads = [p.grad for p in model.model.language_model.parameters() if p.grad is not None]
    assert loss == 0 and count == 0 and grads and all((g == 0).all() for g in grads)


class Fixed:
    name, needs = "fixed", frozenset()

    def __init__(self, mask):
        self.mask = torch.tensor(mask)

    def observe(self, signals):
        return policies.unscored(self.mask)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Samples(Dataset):
    def __init__(self, kind, images, n=24):
        self.items = [sample(kind, images[i % len(images)], 100 + i) for i in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def trainer(path, model, kind, policy, images=(2, 0, 1, 1), on_event=None, **changes):
    args = TrainingArguments(
        output_dir=str(path),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        **{"max_steps": 3, **changes},
    )
    return SelectionTrainer(
        model=model,
        args=args,
        train_dataset=Samples(kind, images),
        data_collator=lambda rows: collate(rows, kind, "left", width=32),
        policy=policy,
        on_event=on_event,
    )


@pytest.mark.parametrize("policy", ["full", "random", "oasis"])
def test_trains_with_each_policy(tmp_path, kind, policy):
    model, events = MODELS[kind](torch.float32).requires_grad_(False), []
    model = with_lora(model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    trainer(tmp_path, model, kind, policy, on_event=events.append, max_steps=5).train()
    json.dumps(events, allow_nan=False)
    selections = [e for e in events if e["type"] == "selection"]
    chosen = sum(sum(e["selected"]) for e in selections)
    assert len(selections) == 5
    assert chosen == {"full": 20, "random": 5}.get(policy, chosen) and chosen > 0
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and all("lora_" in name for name in moved)


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("mask", [[1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 1, 1]])
def test_gradients_are_those_of_the_selected_samples_and_their_images(tmp_path, kind, mask):
    def projector(model):
        # What images pass on their way to the text: its gradient tells which images came by.
        model.requires_grad_(False)
        part = model.model.visual.merger if kind == "qwen" else model.model.multi_modal_projector
        part.requires_grad_(True)
        return model

    keep, seen = KeepGradients(), []
    ours = trainer(tmp_path, projector(MODELS[kind]()), kind, Fixed([bool(m) for m in mask]))
    ours.args.max_steps = 1
    ours.add_callback(keep)
    collator = ours.data_collator
    ours.data_collator = lambda rows: seen.append(rows) or collator(rows)
    ours.train()
    reference = projector(MODELS[kind]()).train()
    rows = [row for row, kept in zip(seen[0], mask, strict=True) if kept]
    total = 0.0
    for row in rows:  # each alone: no batch, no padding, no cutting
        batch = collate([row], kind)
        labels = batch.pop("labels")
        logits = reference(**batch).logits
        total = total + F.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum")
    count = sum(x != -100 for row in rows for x in row["labels"])
    (total / count).backward()
    expected = {n: p.grad for n, p in reference.named_parameters() if p.requires_grad}
    assert expected.keys() == keep.gradients.keys()
    for name, grad in expected.items():
        assert grad.norm() > 0
        assert (keep.gradients[name] - grad).norm() <= 1e-5 * grad.norm(), name


class Config:
    image_token_id = IMAGE


def ids(*tokens, width=12):
    return torch.tensor([[IMAGE] * count + [5] * (width - count) for count in tokens])


def batch_of(tokens, pixels, **more):
    rows = ids(*tokens)
    return {"input_ids": rows, "labels": rows, "pixel_values": pixels, **more}


@pytest.mark.parametrize(
    ("tokens", "images", "counts"),
    [
        ((3, 3), 2, [1, 1]),
        ((2, 5), 2, [1, 1]),  # of any size, but one each
        ((0, 4, 0, 9), 2, [0, 1, 0, 1]),
        ((6, 0, 3), 3, [2, 0, 1]),
        ((0, 0, 8), 4, [0, 0, 4]),
        ((0, 0), 0, [0, 0]),
    ],
)
def test_images_are_counted_by_their_tokens(tokens, images, counts):
    batch = batch_of(tokens, torch.zeros(images, 3, 8, 8))
    assert count_images(batch, Config())[COUNTS].tolist() == counts


GRIDS = torch.tensor([[1, 2, 2], [1, 4, 4], [1, 2, 4]])  # 4, 16 and 8 patches: 1, 4, 2 tokens


def test_images_are_counted_by_their_grids():
    batch = batch_of((5, 0, 2), torch.zeros(28, 96), image_grid_thw=GRIDS)
    batch = count_images(batch, Config())
    assert batch[COUNTS].tolist() == [2, 0, 1]
    rows = image_rows(batch, torch.tensor([2, 0]))
    assert rows["image_grid_thw"].tolist() == [2, 0, 1]
    assert rows["pixel_values"].tolist() == [*range(20, 28), *range(20)]


@pytest.mark.parametrize(
    "batch",
    [
        batch_of((5, 1), torch.zeros(3, 3, 8, 8)),  # 2 tokens an image: 5 are none's
        batch_of((0, 0), torch.zeros(1, 3, 8, 8)),
        batch_of((6, 3), torch.zeros(3, 3, 8, 8), image_sizes=torch.ones(3, 2)),  # any size
        batch_of((4, 3), torch.zeros(28, 96), image_grid_thw=GRIDS),  # ends inside the second
    ],
)
def test_what_the_tokens_do_not_tell_is_refused(batch):
    with pytest.raises(ValueError, match="pixel_values.*num_images"):
        count_images(batch, Config())


def test_patches_that_a_loader_has_cut_are_missed():
    """Of an iterable data set accelerate makes all tensors as long as there are samples."""
    batch = batch_of((5, 0, 2), torch.zeros(3, 96), image_grid_thw=GRIDS)
    with pytest.raises(ValueError, match="pixel_values: got 3 rows, expected 28.*dispatch_batches"):
        count_images(batch, Config())


def test_the_collator_may_count():
    batch = batch_of((6, 3), torch.arange(3.0)[:, None, None, None].expand(3, 3, 8, 8))
    batch["image_sizes"] = torch.ones(3, 2)
    batch[COUNTS] = torch.tensor([1, 2])
    cut = take(count_images(batch, Config()), [1])
    assert cut["pixel_values"][:, 0, 0, 0].tolist() == [1, 2] and len(cut["image_sizes"]) == 2
    for wrong in (torch.tensor([2, 2]), torch.tensor([3]), torch.tensor([1.0, 2.0])):
        with pytest.raises(ValueError, match="num_images.*3 in all"):
            count_images({**batch, COUNTS: wrong}, Config())


def test_images_inside_their_rows_stay_there():
    pixels = torch.arange(2.0)[:, None, None, None, None].expand(2, 3, 3, 8, 8)  # Idefics
    batch = count_images(batch_of((9, 0), pixels), Config())
    assert COUNTS not in batch
    assert take(batch, [1])["pixel_values"].unique().tolist() == [1]


def test_videos_that_no_token_of_the_model_stands_for_are_refused():
    batch = batch_of((2, 2), torch.zeros(2, 3, 8, 8), pixel_values_videos=torch.zeros(16, 96))
    with pytest.raises(ValueError, match="pixel_values_videos"):
        take(count_images(batch, Config()), [0])
