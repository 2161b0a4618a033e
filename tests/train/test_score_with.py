"""Scoring with a frozen model beside the trained one."""

import copy

import pytest
import torch
from one_of_two import Keeping, small
from padded_rows import padded
from tiny_families import t5
from tiny_models import VOCAB, tiny_llama, tiny_model
from tiny_training import Fixed, Pad, Rows, arguments
from torch import nn
from transformers import DataCollatorWithFlattening

from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import TASK
from oasis.train.batch.packed import unpacked
from oasis.train.batch.subbatch import right_padded
from oasis.train.beside import check_inputs
from oasis.train.head import Head
from oasis.train.scoring import inspect_head
from oasis.train.signals.compute import GRADS, compute
from oasis.train.signals.parts import compute_in_parts, ending_after

ALL = policies.SIGNALS - GRADS - {"validation", "image_text_score"}
MASKS = [torch.tensor(mask, dtype=torch.bool) for mask in ((1, 0, 1, 0), (0, 1, 1, 1))]


def trainer_of(path, policy, score_with, collate=None, **options):
    names = {"layer", "mode", "reuse_forward", "score_batch_size", "score_depth", "on_event"}
    own = {name: options.pop(name) for name in names & options.keys()}
    return SelectionTrainer(
        model=options.pop("model", None) or tiny_llama(),
        args=arguments(path, **{"max_steps": 2, **options}),
        train_dataset=Rows(48),
        data_collator=collate or Pad(),
        policy=policy,
        score_with=score_with,
        **own,
    )


def trained(trainer):
    """The batches that a training has seen."""
    seen, select = [], trainer._select
    trainer._select = lambda batch: seen.append(dict(batch)) or select(batch)
    trainer.train()
    return [{k: v for k, v in batch.items() if k != TASK} for batch in seen]


def assert_signals(found, expected):
    for name, value in expected.items():
        assert value.abs().max() > 0
        assert (found[name] - value).abs().max() <= 1e-8 * value.abs().max(), name


@pytest.mark.shows(
    "A model beside the trained one (`score_with`)",
    "policies that score by a forward alone",
    "works",
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_the_policy_is_told_is_of_that_model(tmp_path, side):
    policy, beside = Keeping(MASKS, ALL), small()
    before = copy.deepcopy(beside.state_dict())
    seen = trained(trainer_of(tmp_path, policy, beside, Pad(side)))
    assert len(policy.signals) == len(seen) == 2
    for batch, signals in zip(seen, policy.signals, strict=True):
        assert_signals(signals, compute(small(), batch, Head(), ALL))
        assert signals["features"].shape == (4, 16)  # its width
    assert all(torch.equal(value, before[name]) for name, value in beside.state_dict().items())


def test_it_is_frozen_and_the_selected_rows_train_the_other(tmp_path):
    def run(score_with):
        trainer = trainer_of(tmp_path, Keeping(MASKS, frozenset({"gram"})), score_with)
        trainer.train()
        return trainer

    beside = small().train()
    ours, plain = run(beside), run(None)
    assert ours.score_with is beside and not beside.training
    assert all(w.grad is None and not w.requires_grad for w in beside.parameters())
    expected = plain.model.state_dict()
    assert all(torch.equal(value, expected[n]) for n, value in ours.model.state_dict().items())


def test_a_copy_of_the_untrained_model_chooses_as_that_at_first(tmp_path):
    def run(score_with):
        events = []
        trainer = trainer_of(
            tmp_path, "oasis", score_with, on_event=events.append, max_steps=8, learning_rate=0.1
        )
        trainer.train()
        return [e["informativeness"] for e in events if e["type"] == "selection"]

    ours, plain = run(tiny_llama()), run(None)
    assert ours[0] == pytest.approx(plain[0], rel=1e-6)
    assert ours[-1] != pytest.approx(plain[-1], rel=1e-2)  # trained meanwhile


@pytest.mark.shows(
    "A model beside the trained one (`score_with`)",
    "checkpoints and resuming",
    "works: it is in none, give it again",
)
def test_it_is_in_no_checkpoint_and_a_training_resumes_beside_it(tmp_path):
    def run(folder, steps, score_with, resume=None):
        trainer = trainer_of(
            tmp_path / folder,
            "oasis",
            score_with,
            max_steps=steps,
            save_strategy="steps",
            save_steps=3,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole", 6, small())
    run("plain", 3, None)
    ours, plain = (tmp_path / name / "checkpoint-3" for name in ("whole", "plain"))
    sizes = [{p.name: p.stat().st_size for p in f.iterdir()} for f in (ours, plain)]
    assert sizes[0].keys() == sizes[1].keys()
    weights = [name for name in sizes[0] if "model" in name and name.endswith("safetensors")]
    assert weights and all(sizes[0][name] == sizes[1][name] for name in weights)
    resumed = run("again", 6, small(), str(ours))
    assert vars(resumed.selection_counts) == vars(whole.selection_counts)
    expected = whole.model.state_dict()
    assert all(torch.equal(v, expected[n]) for n, v in resumed.model.state_dict().items())


class Placed(Pad):
    """With the positions of a model that counts from 3 on."""

    def __call__(self, items):
        batch = super().__call__(items)
        real = batch["attention_mask"].cumsum(dim=1)
        return {**batch, "position_ids": (real - 1).clamp(min=0) + 3}


def test_positions_of_the_batch_are_passed_on(tmp_path):
    def gpt2():
        return tiny_model("gpt2", seed=5, n_layer=1, n_embd=32, n_head=4, n_positions=32)

    policy = Keeping(MASKS, frozenset({"loss"}))
    seen = trained(trainer_of(tmp_path, policy, gpt2(), Placed()))
    for batch, signals in zip(seen, policy.signals, strict=True):
        assert "position_ids" in batch
        assert_signals(signals, compute(gpt2(), batch, Head(), policy.needs))
        del batch["position_ids"]
        without = compute(gpt2(), batch, Head(), policy.needs)
        assert (signals["loss"] - without["loss"]).abs().max() > 1e-3


class Flat(DataCollatorWithFlattening):
    def __call__(self, rows):
        keys = ("input_ids", "labels")
        return super().__call__([{key: row[key].tolist() for key in keys} for row in rows])


@pytest.mark.shows("A model beside the trained one (`score_with`)", "packed rows", "works")
def test_sequences_of_packed_rows_are_scored_by_it(tmp_path):
    policy = Keeping(MASKS, frozenset({"gram"}))
    trainer = trainer_of(
        tmp_path, policy, small(), Flat(return_tensors="pt"), remove_unused_columns=False
    )
    for batch, signals in zip(trained(trainer), policy.signals, strict=True):
        assert_signals(signals, compute(small(), unpacked(batch), Head(), policy.needs))


@pytest.mark.shows(
    "A model beside the trained one (`score_with`)",
    "`score_batch_size`, `score_depth`",
    "works: parts and blocks of it",
)
def test_parts_and_depth_are_of_that_model(tmp_path):
    def deep():
        return tiny_model(seed=5, num_hidden_layers=3)

    policy = Keeping(MASKS, frozenset({"gram"}))
    trainer = trainer_of(tmp_path, policy, deep(), score_batch_size=3, score_depth=2)
    for batch, signals in zip(trained(trainer), policy.signals, strict=True):
        with ending_after(model := deep(), 2):
            expected = compute_in_parts(model, batch, Head(), policy.needs)
        assert_signals(signals, expected)
    with pytest.raises(ValueError, match="score_depth: got 3, expected 1 to 2 of the 3 blocks"):
        trainer_of(tmp_path, policy, deep(), score_depth=3)


def int8(model, whole=False):
    """By torch's own dynamic quantisation of linear layers, of all or of all but the head."""
    quantise = torch.ao.quantization.quantize_dynamic
    if whole:
        return quantise(model, {nn.Linear}, dtype=torch.qint8)
    model.model = quantise(model.model, {nn.Linear}, dtype=torch.qint8)
    return model


COPIES = {
    "bfloat16": lambda: tiny_model(dtype=torch.bfloat16),
    "int8": lambda: int8(tiny_model(dtype=torch.float32)),
}


@pytest.mark.shows(
    "A model beside the trained one (`score_with`)",
    "a copy in bfloat16, or in int8 by torch.ao but for the head",
    "works",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", COPIES)
def test_copies_in_fewer_bits_score_nearly_as_the_whole(tmp_path, kind):
    policy = Keeping(MASKS, frozenset({"gram"}))
    trainer = trainer_of(tmp_path, policy, COPIES[kind](), model=tiny_model())
    seen = trained(trainer)
    exact = compute(tiny_model(), seen[0], Head(), policy.needs)["gram"]
    error = (policy.signals[0]["gram"] - exact).norm() / exact.norm()
    assert 1e-6 < error < 0.1
    assert inspect_head(trainer.score_with, seen[0]).error is None


REFUSED = [
    (
        lambda: small(),
        {"policy": "tive"},
        "LlamaForCausalLM, but the policy 'tive' asks for full_grads",
    ),
    (lambda: small(), {"policy": "random"}, "policy 'random' asks for no signal at all"),
    (lambda: small(), {"layer": "last_block"}, "policy 'oasis' asks for layer='last_block'"),
    (
        lambda: small(),
        {"reuse_forward": True, "gradient_checkpointing": True},
        "reuse_forward: got True with score_with, the forward of LlamaForCausalLM",
    ),
    (
        lambda: tiny_model(vocab_size=VOCAB + 3),
        {},
        f"vocabulary of {VOCAB + 3} tokens, expected {VOCAB} as in the trained model.*"
        rf"resize_token_embeddings\({VOCAB}\)",
    ),
    (lambda: t5(), {}, "score_with: got an encoder-decoder, T5ForConditionalGeneration"),
    (lambda: nn.Linear(2, 2), {}, "score_with: got Linear, expected a causal language model"),
]


@pytest.mark.shows(
    "A model beside the trained one (`score_with`)",
    "policies that need gradients of trained weights or score nothing, another vocabulary, an "
    "encoder-decoder, `reuse_forward`, weights shared with the trained model",
    "refused",
)
@pytest.mark.parametrize(("score_with", "options", "message"), REFUSED)
def test_what_another_model_cannot_score_is_refused(tmp_path, score_with, options, message):
    policy = options.get("policy", "oasis")
    rest = {key: value for key, value in options.items() if key != "policy"}
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, policy, score_with(), **rest)


def test_a_name_and_the_trained_model_itself_are_refused(tmp_path):
    with pytest.raises(TypeError, match="score_with: got 'smollm2', expected a causal language"):
        trainer_of(tmp_path, "oasis", "smollm2")
    base = tiny_model()
    with pytest.raises(ValueError, match="LlamaForCausalLM, which shares weights with the trained"):
        trainer_of(tmp_path, "oasis", base, model=base)
    assert all(weight.requires_grad for weight in base.parameters())  # nothing has been frozen


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_head_that_cannot_be_read_is_refused_of_whichever_model(tmp_path):
    whole = int8(tiny_model(dtype=torch.float32), whole=True)
    with pytest.raises(ValueError, match="score_with: output head: got no weight"):
        trainer_of(tmp_path, "oasis", whole)


@pytest.mark.shows(
    "A model beside the trained one (`score_with`)",
    "batches with inputs that it does not take",
    "refused, first batch",
)
def test_inputs_that_it_does_not_take_are_refused():
    batch = right_padded(padded())
    check_inputs(tiny_llama(), small(), batch)
    with pytest.raises(ValueError, match="cannot be given inputs_embeds of the batch"):
        check_inputs(tiny_llama(), small(), {**batch, "inputs_embeds": torch.zeros(5, 13, 32)})
    positions = batch["attention_mask"].cumsum(dim=1)
    with pytest.raises(ValueError, match="got BloomForCausalLM, which cannot be given position_id"):
        bloom = tiny_model("bloom", n_layer=1)
        check_inputs(tiny_llama(), bloom, {**batch, "position_ids": positions})


def test_a_trained_model_whose_own_head_cannot_score_is_chosen_for(tmp_path):
    """Its logits are not scored by, so that it may change them in whatever way."""

    def own():
        model = tiny_model()
        model.lm_head.register_forward_hook(lambda m, a, out: out.sinh())
        return model

    with pytest.raises(ValueError, match="changes the logits behind its output head"):
        trainer_of(tmp_path, "oasis", None, model=own()).train()
    trainer = trainer_of(tmp_path, "oasis", tiny_model(), model=own())
    trainer.train()
    assert trainer.selection_counts.candidates == 8


def test_fill_takes_it(tmp_path):
    policy = Fixed([torch.tensor([1, 0, 1, 0], dtype=torch.bool)])
    policy.needs = frozenset({"gram"})
    trainer = trainer_of(tmp_path, policy, small(), mode="fill")
    trainer.train()
    assert trainer.selection_counts.selected == 8
