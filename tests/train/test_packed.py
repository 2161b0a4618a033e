"""Rows of several sequences: the sequences are the samples, and the selected ones packed again."""

import datasets
import pytest
import torch
from tiny_models import tiny_llama, tiny_model
from tiny_sft import SelectingSFT, SFTInOrder, sft_rows, sft_trainer
from tiny_training import Fixed, InOrder, Rows, arguments
from transformers import DataCollatorWithFlattening, LlamaForCausalLM, Trainer

from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.packed import is_packed, packed, unpacked
from oasis.train.batch.subbatch import take, targets
from oasis.train.scoring import inspect_head, score

FLATTENING = {
    "positions": {},
    "bounds": {"return_flash_attn_kwargs": True, "return_position_ids": False},
    "all": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
}


def items(n=5):
    rows = Rows(n, seed=3).items
    return [{k: row[k].tolist() for k in ("input_ids", "labels")} for row in rows]


def flat(kind="positions", n=5):
    return DataCollatorWithFlattening(return_tensors="pt", **FLATTENING[kind])(items(n))


@pytest.mark.parametrize("kind", FLATTENING)
def test_sequences_are_taken_apart_and_put_together(kind):
    batch = flat(kind)
    assert is_packed(batch) and batch["labels"].shape[0] == 1
    rows, longest = unpacked(batch), max(len(item["labels"]) for item in items())
    for row, item in enumerate(items()):
        length = len(item["input_ids"])
        assert rows["attention_mask"][row].tolist() == [1] * length + [0] * (longest - length)
        assert rows["input_ids"][row, :length].tolist() == item["input_ids"]
        assert rows["labels"][row, 1:length].tolist() == item["labels"][1:]
        assert (rows["labels"][row, length:] == -100).all()
    again = packed(rows, batch)
    assert again.keys() == batch.keys()
    for key, value in batch.items():
        assert torch.equal(torch.as_tensor(again[key]), torch.as_tensor(value)), key
        assert not isinstance(value, torch.Tensor) or again[key].dtype == value.dtype


def test_the_kept_ones_alone_are_put_together():
    batch, kept = flat("all"), [1, 4]
    expected = DataCollatorWithFlattening(return_tensors="pt", **FLATTENING["all"])(
        [items()[row] for row in kept]
    )
    got = packed(take(unpacked(batch), kept), batch)
    assert all(
        torch.equal(torch.as_tensor(got[k]), torch.as_tensor(v)) for k, v in expected.items()
    )


def test_rows_with_padding_and_rows_of_one_sequence():
    ids = torch.arange(1, 9).repeat(2, 1)
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7]])
    batch = {"input_ids": ids, "labels": ids.clone(), "position_ids": positions}
    rows = unpacked(batch)
    assert rows["attention_mask"].sum(dim=1).tolist() == [3, 2, 8]  # what fills up is no sample
    assert rows["input_ids"][1, :2].tolist() == [4, 5]
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0]])
    positions = torch.tensor([[1, 1, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 1, 1, 1, 1]])
    assert not is_packed({**batch, "position_ids": positions, "attention_mask": mask})
    with pytest.raises(ValueError, match="pixel_values.*cannot be taken apart|not packed"):
        unpacked({**batch, "pixel_values": torch.zeros(3, 3, 4, 4)})


def test_scores_are_those_of_the_sequences_alone():
    model, rows = tiny_llama(), unpacked(flat())
    together = score(model, rows, inspect_head(model, rows))
    for row, item in enumerate(items()):
        alone = {k: torch.tensor([v]) for k, v in item.items()}
        loss = model(**alone).loss
        assert float(together.loss[row]) == pytest.approx(float(loss), rel=1e-6)


class Flat(DataCollatorWithFlattening):
    def __call__(self, rows):
        keys = ("input_ids", "labels")
        return super().__call__([{key: row[key].tolist() for key in keys} for row in rows])


def trained(path, cls, batches=None, **options):
    if batches is not None:
        options["batches"] = batches
    trainer = cls(
        model=tiny_llama(),
        args=arguments(path, max_steps=2, remove_unused_columns=False),
        train_dataset=Rows(48),
        data_collator=Flat(return_tensors="pt"),
        **options,
    )
    return trainer, trainer.train().training_loss


MASKS = [[1, 0, 1, 0], [0, 1, 1, 1]]


@pytest.mark.shows(
    "Packed rows",
    "`DataCollatorWithFlattening` (`position_ids`, `cu_seq_lens`)",
    "works: the sequences are the samples",
)
def test_trains_on_the_selected_sequences_alone(tmp_path):
    masks = [torch.tensor(mask, dtype=torch.bool) for mask in MASKS]
    ours, loss = trained(tmp_path, SelectionTrainer, policy=Fixed(masks))
    collate = Flat(return_tensors="pt")
    order = [row for batch in order_of(tmp_path) for row in batch]
    batches = [
        collate([Rows(48)[row] for row, kept in zip(order[4 * i :], mask, strict=False) if kept])
        for i, mask in enumerate(MASKS)
    ]
    theirs, expected = trained(tmp_path, InOrder, batches)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert ours.selection_counts.candidates == 8 and ours.selection_counts.selected == 5
    parameters = theirs.model.state_dict()
    for name, value in ours.model.state_dict().items():
        assert (value - parameters[name]).abs().max() < 1e-2 * 1e-3, name  # of a step's size


def order_of(path):
    """Numbers of the rows in the order in which a training takes them."""

    class Numbers(Rows):
        def __getitem__(self, i):
            return i

    trainer = Trainer(
        model=tiny_llama(),
        args=arguments(path, max_steps=2),
        train_dataset=Numbers(48),
        data_collator=torch.tensor,
    )
    torch.manual_seed(trainer.args.seed)
    return [batch.tolist() for batch in trainer.get_train_dataloader()]


@pytest.mark.shows(
    "Packed rows",
    "TRL's `packing` (bfd, bfd_split) and `padding_free`",
    "works: the sequences are the samples",
)
@pytest.mark.parametrize(
    "options",
    [
        {"packing": True, "max_length": 40},
        {"packing": True, "max_length": 40, "packing_strategy": "bfd_split"},
        {"padding_free": True, "max_length": None, "pad_to_multiple_of": 8},
    ],
)
def test_trl_packs_and_the_sequences_are_the_samples(tmp_path, options):
    trainer = sft_trainer(SelectingSFT, tmp_path, tiny_llama(), policy="oasis", **options)
    before, after, select = [], [], trainer._select

    def spy(batch):
        before.append(batch)
        after.append(select(dict(batch)))
        return after[-1]

    trainer._select = spy
    trainer.train()
    counts = trainer.selection_counts
    assert counts.candidates >= 12 > 3 and 0 < counts.selected < counts.candidates
    for batch, kept in zip(before, after, strict=True):
        assert kept.keys() <= batch.keys() and kept["labels"].shape[0] == 1
        assert targets(kept["labels"]).sum() <= targets(batch["labels"]).sum()
    plain = sft_trainer(SFTInOrder, tmp_path, tiny_llama(), **{**options, "max_steps": 1})
    plain.batches = [batch for batch in after if (batch["labels"] != -100).any()][:1]
    plain.train()  # takes what is handed over


@pytest.mark.shows(
    "Packed rows", 'TRL\'s `packing_strategy="wrapped"`', "refused: nothing says where texts begin"
)
def test_wrapped_texts_are_refused(tmp_path):
    options = {"packing": True, "max_length": 40, "packing_strategy": "wrapped"}
    with pytest.raises(ValueError, match="packing_strategy: got 'wrapped'.*'bfd'"):
        sft_trainer(SelectingSFT, tmp_path, tiny_llama(), policy="full", **options)


def test_a_batch_of_one_sample_is_said(tmp_path, caplog):
    one = datasets.Dataset.from_list(sft_rows(24).to_list())
    options = {"per_device_train_batch_size": 1, "max_steps": 9}
    sft_trainer(SelectingSFT, tmp_path, tiny_llama(), one, policy="oasis", **options).train()
    assert caplog.text.count("candidate batches are of one sample") == 1


def test_a_long_stretch_without_a_selection_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("oasis.train.events.DRY", 3)
    none = Fixed([torch.zeros(4, dtype=torch.bool)])
    trainer, _ = trained(tmp_path, SelectionTrainer, policy=none)
    assert "nothing was selected" not in caplog.text
    trainer.args.max_steps = 5
    trainer.train()
    assert caplog.text.count("nothing was selected") == 1


@pytest.mark.parametrize("metric, said", [("fisher", 1), ("token_fisher", 0), ("loss", 0)])
def test_short_answers_are_said_to_be_preferred(tmp_path, caplog, monkeypatch, metric, said):
    monkeypatch.setattr("oasis.train.trainer.LOOK", 6)
    monkeypatch.setattr("oasis.train.reasons.FEW", 8)
    draw = torch.Generator().manual_seed(0)
    rows = []
    for length in [2, 16] * 16:  # as many tokens behind a prompt of two
        ids = torch.randint(3, 40, (2 + length,), generator=draw).tolist()
        rows.append({"input_ids": ids, "labels": [-100, -100, *ids[2:]]})
    data = datasets.Dataset.from_list(rows)
    policy = policies.create("vanilla", 0.5, metric=metric)
    trainer = sft_trainer(SelectingSFT, tmp_path, tiny_llama(), data, policy=policy, max_steps=8)
    trainer.train()
    counts = trainer.selection_counts
    assert counts.candidate_tokens == 9 * counts.candidates
    if metric != "loss":
        assert (counts.selected_tokens < 0.7 * 9 * counts.selected) == bool(said)
    assert caplog.text.count("a gradient's norm prefers short answers") == said


class Blurring(LlamaForCausalLM):
    """Does not look at where sequences begin."""

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        return super().forward(input_ids, attention_mask)


@pytest.mark.shows(
    "Packed rows", "a model whose attention does not keep them apart", "refused, first batch"
)
def test_sequences_that_see_each_other_are_refused(tmp_path):
    model = Blurring(tiny_model().config)
    trainer = SelectionTrainer(
        model=model,
        args=arguments(tmp_path, remove_unused_columns=False),
        train_dataset=Rows(8),
        data_collator=Flat(return_tensors="pt"),
        policy="oasis",
    )
    with pytest.raises(ValueError, match="got Blurring, in which sequences of one packed row see"):
        trainer.train()
