"""Heads that are quantised or carry adapters, and learned prompts: scored by what they apply."""

import pytest
import torch
from padded_rows import padded
from peft import (
    CPTConfig,
    LoraConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from tiny_models import VOCAB, tiny_llama, tiny_model, with_lora
from tiny_training import KeepGradients, Pad, Rows, arguments, selection_trainer
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import Trainer

from oasis.train import head as heads
from oasis.train.batch.columns import TASK
from oasis.train.head import head_weight
from oasis.train.loss import summed_cross_entropy
from oasis.train.models import unwrap
from oasis.train.scoring import inspect_head, score
from oasis.train.signals.compute import compute

FIVE = {"max_steps": 5, "learning_rate": 1e-3}


def head_of(model):
    return unwrap(model).get_output_embeddings()


def torchao(name):
    def quantised(head):
        quantization = pytest.importorskip("torchao.quantization")
        quantization.quantize_(head, getattr(quantization, name)())
        return head

    return quantised


def eight_bits(head):
    layers = pytest.importorskip("bitsandbytes.nn")
    out = layers.Linear8bitLt(32, VOCAB, False, has_fp16_weights=False)
    out.load_state_dict(head.state_dict())
    return out.to("cpu")


class Integers(nn.Linear):
    """8-bit rows with a scale each, stored as bitsandbytes does."""

    def __init__(self, head):
        super().__init__(32, VOCAB, bias=False)
        scales = head.weight.detach().abs().amax(dim=1)
        numbers = (head.weight.detach() * 127 / scales[:, None]).round().to(torch.int8)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.weight.SCB = scales

    def forward(self, hidden):
        return hidden @ (self.weight.to(hidden) * self.weight.SCB[:, None].to(hidden) / 127).T


QUANTISED = {
    "int8 with a scale for each row": Integers,
    "torchao int8": torchao("Int8WeightOnlyConfig"),
    "torchao int8, dynamic": torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao float8": torchao("Float8WeightOnlyConfig"),
    "bitsandbytes 8-bit": eight_bits,
}


def with_head(make, targets=("q_proj", "v_proj")):
    """A Llama with LoRA whose head is `make` of the plain one."""
    model = tiny_model(dtype=torch.float32)
    model.lm_head = make(model.lm_head).requires_grad_(False)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=list(targets)))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.shows(
    "Adapters and quantised heads",
    "heads of torchao (int8, float8) and bitsandbytes (8-bit; 4-bit on a GPU)",
    "works: made numbers of a range of rows at a time",
)
@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_head_is_scored_by_the_numbers_it_stands_for(tmp_path, monkeypatch, name):
    monkeypatch.setattr(heads, "PART", 7)
    model, batch = with_head(QUANTISED[name]), padded()
    weight = head_weight(head_of(model))
    assert weight.shape == (VOCAB, 32) and not weight.dense and len(weight.parts()) == 8
    whole, eye = weight.whole(), torch.eye(32)
    assert torch.equal(whole, torch.cat([weight.rows(*part) for part in weight.parts()]))
    rows, _ = weight.at([5, 33])
    assert torch.equal(rows, whole[[5, 33]])
    applied = head_of(model).eval()(eye).T
    assert (whole - applied).abs().max() <= 1e-2 * applied.abs().max()
    head = inspect_head(model, batch)
    assert head.error is None and head.gather
    got = compute(model, batch, head, frozenset({"gram", "loss", "sketch"}))
    plain = nn.Linear(32, VOCAB, bias=False)
    plain.weight.data = whole.clone()
    unwrap(model).get_base_model().lm_head = plain
    expected = compute(model, batch, head, frozenset({"gram", "loss", "sketch"}))
    for key, value in expected.items():
        assert (got[key] - value).abs().max() <= 1e-5 * value.abs().max(), key
    if name == "torchao int8, dynamic":
        return  # no gradient comes through its product
    trainer = selection_trainer(tmp_path, with_head(QUANTISED[name]), "oasis", **FIVE)
    assert trainer.train().training_loss > 0 and trainer.selection_counts.selected > 0


def test_lora_on_a_quantised_head(monkeypatch):
    monkeypatch.setattr(heads, "PART", 7)
    model = with_lora(tiny_model(dtype=torch.float32), ("q_proj", "lm_head"))
    head = head_of(model).eval()
    head.base_layer = Integers(head.base_layer)
    applied, weight = head(torch.eye(32)).T, head_weight(head)
    assert not weight.dense
    assert (weight.whole() - applied).abs().max() <= 1e-5 * applied.abs().max()
    assert (weight.whole() - head_weight(head.base_layer).whole()).abs().max() > 0.01
    assert score(model, padded(), inspect_head(model, padded())).gram.diagonal().sum() > 0


@pytest.mark.shows(
    "Adapters and quantised heads",
    "a 4-bit head of bitsandbytes on the CPU",
    "refused: a forward there stores its numbers in another order",
)
@pytest.mark.parametrize("nested", [False, True])
def test_rows_of_a_four_bit_head(nested):
    layers = pytest.importorskip("bitsandbytes.nn")
    functional = pytest.importorskip("bitsandbytes.functional")
    plain = nn.Linear(36, VOCAB, bias=False)  # blocks of 64 numbers end inside rows
    layer = layers.Linear4bit(36, VOCAB, False, compress_statistics=nested, quant_type="nf4")
    layer.load_state_dict(plain.state_dict())
    weight = layer.to("cpu").weight
    expected = functional.dequantize_4bit(weight.data, weight.quant_state)
    assert (expected - plain.weight).abs().max() < 0.03
    for first, last in ((0, VOCAB), (0, 1), (5, 23), (VOCAB - 1, VOCAB)):
        assert torch.equal(heads._four_bits(weight, first, last), expected[first:last])
    with pytest.raises(ValueError, match="4-bit numbers of bitsandbytes on the CPU.*on a GPU"):
        head_weight(layer)


@pytest.mark.shows(
    "Adapters and quantised heads",
    "LoRA or DoRA on the output head",
    "works: scored by the weight that they make",
)
def test_dora_on_the_head_is_its_effective_weight(tmp_path):
    model = with_lora(tiny_model(), ["q_proj", "lm_head"], use_dora=True)
    head, batch = head_of(model), padded()
    with torch.no_grad():
        head.lora_magnitude_vector["default"].weight.mul_(torch.linspace(0.5, 2, VOCAB))
    weight, x = head_weight(head).whole(), torch.randn(3, 32, dtype=torch.float64)
    assert torch.allclose(x @ weight.T, head.eval()(x), rtol=1e-10)
    found = inspect_head(model, batch)
    assert found.error is None and found.verified
    got = score(model, batch, found)
    base = unwrap(model).get_base_model()
    base.lm_head = nn.Linear(32, VOCAB, bias=False)
    base.lm_head.weight = nn.Parameter(weight.detach())
    expected = score(model, batch, found)
    assert torch.allclose(got.gram, expected.gram, rtol=1e-10)
    dora = with_lora(tiny_model(), ["q_proj", "lm_head"], use_dora=True)
    assert selection_trainer(tmp_path, dora, "oasis", **FIVE).train().training_loss > 0


class Tensors(nn.Linear):
    """A layer with a weight of a kind that nobody knows."""

    def __init__(self):
        super().__init__(32, VOCAB, bias=False)
        self.weight = nn.Parameter(torch.ones(VOCAB, 32, dtype=torch.int16), requires_grad=False)

    def forward(self, hidden):
        return hidden @ self.weight.to(hidden.dtype).T


def unreadable():
    model = tiny_llama()
    unwrap(model).get_base_model().lm_head = Tensors()
    return model


@pytest.mark.shows(
    "Adapters and quantised heads",
    "a head of numbers that nothing here can read, an adapter that is neither LoRA nor DoRA",
    "refused; works with policies that do not score by it",
)
def test_a_head_that_cannot_be_read_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"got a weight \(61, 32\) of torch.int16 \(Tensors\)"):
        selection_trainer(tmp_path, unreadable(), "oasis")
    odd = tiny_llama()
    pair = TwoTensor(*(torch.randn(VOCAB, 32, dtype=torch.float64) for _ in range(2)))
    head_of(odd).weight = nn.Parameter(pair, requires_grad=False)
    with pytest.raises(ValueError, match="got a weight that is a .*TwoTensor"):
        selection_trainer(tmp_path, odd, "oasis")
    several = with_lora(tiny_model(), ["q_proj", "lm_head"], use_dora=True)
    several.add_adapter("more", several.peft_config["default"])
    several.base_model.set_adapter(["default", "more"])
    with pytest.raises(ValueError, match="neither plain LoRA .* nor DoRA alone"):
        selection_trainer(tmp_path, several, "oasis")
    for policy in ("random", "coincide", "full"):
        trainer = selection_trainer(tmp_path, unreadable(), policy, max_steps=1)
        assert trainer.train().training_loss > 0


PROMPTS = {
    "prompt tuning": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p-tuning": PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8
    ),
    "prefix tuning": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


def prompted(name):
    torch.manual_seed(1)
    model = get_peft_model(tiny_model(dtype=torch.float32), PROMPTS[name]).double()
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.shows(
    "Adapters and quantised heads",
    "prompt, p- and prefix tuning",
    "works: virtual tokens have no label, the first token of a row neither",
)
@pytest.mark.parametrize("name", PROMPTS)
def test_a_learned_prompt(tmp_path, name):
    model, batch = prompted(name), padded()
    head = inspect_head(model, batch)
    assert head.verified and head.gather and head.error is None
    got = compute(model, batch, head, frozenset({"gram", "loss", "features", "features_multi"}))
    weight = head_of(model).weight.requires_grad_()
    grads = []
    for row, real in enumerate(batch["attention_mask"].bool()):
        ids, labels = batch["input_ids"][row : row + 1, real], batch["labels"][row, real]
        count = int((labels[1:] != -100).sum())
        loss = model.eval()(input_ids=ids, labels=labels[None]).loss if count else weight.sum() * 0
        assert torch.allclose(got["loss"][row], loss.double(), rtol=1e-6)
        grads.append(torch.autograd.grad(loss, weight)[0].flatten())
    gram = torch.stack(grads) @ torch.stack(grads).T
    assert (got["gram"] - gram).abs().max() <= 1e-6 * gram.max()
    a, b = (summed_cross_entropy(model, batch, gather=gather)[0] for gather in (True, False))
    assert torch.allclose(a, b) and a > 0


@pytest.mark.parametrize("name", PROMPTS)
def test_a_learned_prompt_is_trained_as_by_the_plain_trainer(tmp_path, name):
    def run(cls, **more):
        keep = KeepGradients()
        collate = lambda items: {k: v for k, v in Pad("right")(items).items() if k != TASK}  # noqa: E731
        trainer = cls(
            model=prompted(name).float(),
            args=arguments(tmp_path, remove_unused_columns=False, **FIVE),
            train_dataset=Rows(24),
            data_collator=collate,
            **more,
        )
        trainer.add_callback(keep)
        trainer.train()
        return keep.steps

    from oasis.train import SelectionTrainer

    ours, theirs = run(SelectionTrainer, policy="full"), run(Trainer)
    assert len(ours) == len(theirs) == 5
    for a, b in zip(ours, theirs, strict=True):
        for key, value in b.items():
            assert value is None or (a[key] - value).norm() <= 1e-4 * value.norm(), key


@pytest.mark.shows(
    "Adapters and quantised heads", "context-aware and multitask prompts (CPT)", "refused"
)
def test_prompts_that_ask_for_more_than_rows(tmp_path):
    config = CPTConfig(
        task_type="CAUSAL_LM", cpt_token_ids=[1, 2], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 2]
    )
    model = get_peft_model(tiny_model(dtype=torch.float32), config)
    with pytest.raises(ValueError, match="kind CPT, expected PROMPT_TUNING"):
        selection_trainer(tmp_path, model, "random")
