"""Scoring in parts of one length, and by the first blocks alone."""

import time

import pytest
import torch
from padded_rows import padded
from tiny_families import t5
from tiny_models import LINEAR, tiny_llama, tiny_model, with_lora
from tiny_training import Fixed, KeepGradients, Pad, Rows, arguments
from torch import nn

from oasis.train import SelectionTrainer
from oasis.train.head import Head
from oasis.train.reuse import ForwardReuse
from oasis.train.signals.compute import compute
from oasis.train.signals.parts import (
    FORWARD_ALONE,
    by_length,
    check_cheaper,
    check_packed,
    compute_in_parts,
    ending_after,
)

ALONE = FORWARD_ALONE - {"validation"}  # which is none without rows of earlier batches


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert value.abs().max() > 0
        assert (ours[name] - value).abs().max() <= 1e-5 * value.abs().max(), name


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [1, 2, 5, None])
def test_parts_have_the_scores_of_the_whole(side, size):
    """Of the first four rows, with the fifth as one of an earlier batch."""
    model, batch = tiny_llama(), padded(side)
    expected = compute(model, batch, Head(), FORWARD_ALONE, candidates=4)
    ours = compute_in_parts(model, batch, Head(), FORWARD_ALONE, candidates=4, size=size)
    assert_same(ours, expected)


def test_parts_run_little_padding():
    batch, positions = padded("right", width=20), []  # texts of 9, 5, 12, 7 and 3 tokens
    assert [part.tolist() for part in by_length(batch, 2)] == [[4, 1], [3, 0], [2]]
    model = tiny_llama()
    model.get_base_model().model.layers[0].register_forward_pre_hook(
        lambda _, args: positions.append(args[0].shape[:2])
    )
    compute_in_parts(model, batch, Head(), frozenset({"gram"}), size=2)
    assert positions == [(2, 5), (2, 9), (1, 12)]


def test_a_depth_is_the_model_cut_there():
    def cut():
        model = tiny_model(num_hidden_layers=3)
        model.model.layers = nn.ModuleList(model.model.layers[:2])
        model.config.num_hidden_layers = 2
        return model

    model, batch = tiny_model(num_hidden_layers=3), padded("right")
    before = compute(model, batch, Head(), ALONE)
    with ending_after(model, 2):
        ours = compute_in_parts(model, batch, Head(), ALONE)
    assert_same(ours, compute(cut(), batch, Head(), ALONE))
    assert (ours["gram"] - before["gram"]).abs().max() > 1e-3 * before["gram"].abs().max()
    after = compute(model, batch, Head(), ALONE)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all("forward" not in vars(block) for block in model.model.layers)


@pytest.mark.parametrize("kind", ["bloom", "falcon", "gpt_neo"])
def test_a_depth_of_blocks_that_give_tuples(kind):
    types = {"attention_types": [[["global"], 3]]} if kind == "gpt_neo" else {}
    model = tiny_model(kind, num_hidden_layers=3, num_layers=3, n_layer=3, **types)
    with ending_after(model, 2):
        ours = compute_in_parts(model, padded("right"), Head(), frozenset({"gram"}))
    assert ours["gram"].isfinite().all() and (ours["gram"].diagonal()[:2] > 0).any()


class Scored(Fixed):
    needs = frozenset({"gram"})


def test_what_is_kept_of_parts_and_lower_blocks_is_trained_on(tmp_path):
    def run(**options):
        keep = KeepGradients()
        trainer = SelectionTrainer(
            model=with_lora(tiny_model(num_hidden_layers=3), LINEAR),
            args=arguments(tmp_path, max_steps=1, gradient_checkpointing=True),
            train_dataset=Rows(8),
            data_collator=Pad("left"),
            policy=Scored([torch.tensor([1, 0, 1, 0], dtype=torch.bool)]),
            callbacks=[keep],
            **options,
        )
        trainer.train()
        return keep.steps[0], trainer

    ours, trainer = run(reuse_forward=True, score_depth=2, score_batch_size=3)
    assert trainer._reuse.checked and isinstance(trainer._reuse, ForwardReuse)
    plain, _ = run()
    for name, value in plain.items():
        if value is not None:
            assert (ours[name] - value).norm() <= 1e-10 * value.norm() > 0, name


def test_parts_shorter_than_the_selected_rows_are_reused(tmp_path):
    """Zeros were kept behind a part's longest row, where a longer selected one has padding."""

    def run(**options):
        keep = KeepGradients()
        SelectionTrainer(
            model=with_lora(tiny_model(), LINEAR),
            args=arguments(tmp_path, max_steps=1, gradient_checkpointing=True),
            train_dataset=Rows(8),
            data_collator=Pad("right"),
            policy=Scored([torch.ones(4, dtype=torch.bool)]),
            callbacks=[keep],
            **options,
        ).train()
        return keep.steps[0]

    plain, ours = run(), run(reuse_forward=True, score_batch_size=1)
    for name, value in plain.items():
        if value is not None:
            assert (ours[name] - value).norm() <= 1e-10 * value.norm() > 0, name


REFUSED = [
    ({"score_depth": 2}, "score_depth: got 2, expected 1 to 1 of the 2 blocks of LlamaForCausalLM"),
    ({"score_depth": True}, "score_depth: got True, expected a whole number from 1"),
    ({"score_batch_size": 0}, "score_batch_size: got 0, expected a whole number from 1"),
    ({"score_depth": 1, "policy": "random"}, "asks for no signal at all"),
    ({"score_depth": 1, "layer": "last_block"}, "asks for layer='last_block'"),
    ({"score_batch_size": 2, "policy": "tive"}, "but the policy asks for "),
]


@pytest.mark.shows(
    "Cheaper scores (`score_batch_size`, `score_depth`)",
    "policies that ask for more than the output head gives (gradients of weights, means of blocks, "
    'images), `layer="last_block"`',
    "refused",
)
@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_needs_a_whole_forward_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        SelectionTrainer(
            model=tiny_llama(), args=arguments(tmp_path), train_dataset=Rows(8), **options
        )


@pytest.mark.shows(
    "Cheaper scores (`score_batch_size`, `score_depth`)",
    "`score_depth` of an encoder-decoder",
    "refused",
)
def test_an_encoder_decoder_has_no_depth():
    with pytest.raises(ValueError, match="score_depth: got 1 and an encoder-decoder, T5"):
        check_cheaper(t5(), 1, None, frozenset({"gram"}), "head")


@pytest.mark.parametrize("distributed", ["FSDP", "DEEPSPEED"])
def test_sharded_weights_and_packed_batches_take_whole_forwards(distributed):
    with pytest.raises(ValueError, match="score_batch_size: got 4, packed batches and weights"):
        check_packed(4, distributed)
    check_packed(None, distributed)
    check_packed(4, "MULTI_GPU")


class Watched(Rows):
    """Notes, across processes, which rows have been asked for."""

    def __init__(self, n):
        super().__init__(n)
        self.fetched = torch.zeros(n).share_memory_()

    def __getitem__(self, i):
        self.fetched[i] = 1
        return super().__getitem__(i)


@pytest.mark.shows(
    "Cheaper scores (`score_batch_size`, `score_depth`)",
    "`dataloader_num_workers`, `dataloader_prefetch_factor`",
    "works: the same selections in the same order, from batches fetched while others are scored",
)
def test_batches_are_fetched_ahead_of_their_scoring(tmp_path):
    def run(wait_for=0, **loading):
        events, data = [], Watched(48)

        def on_event(event):
            if not events and wait_for:  # before the second batch is asked for
                limit = time.monotonic() + 60
                while data.fetched.sum() < wait_for and time.monotonic() < limit:
                    time.sleep(0.01)
                assert data.fetched.sum() >= wait_for
            events.append(event)

        trainer = SelectionTrainer(
            model=tiny_llama(),
            args=arguments(tmp_path, max_steps=6, **loading),
            train_dataset=data,
            data_collator=Pad(),
            policy="oasis",
            score_batch_size=2,
            on_event=on_event,
        )
        trainer.train()
        loader = trainer.callback_handler.train_dataloader
        chosen = [(e["informativeness"], e["selected"]) for e in events if e["type"] == "selection"]
        return chosen, (loader.num_workers, loader.prefetch_factor)

    plain, _ = run()
    # Two workers, three batches of four rows each, beside the one that is scored.
    ahead, options = run(28, dataloader_num_workers=2, dataloader_prefetch_factor=3)
    assert options == (2, 3)
    assert ahead == plain and len(plain) == 6
