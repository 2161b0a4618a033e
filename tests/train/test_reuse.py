"""`reuse_forward`: the training step goes on from the scoring forward, to the same gradients."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType
from padded_rows import padded
from peft import PromptTuningConfig, get_peft_model
from tiny_models import LINEAR, tiny_llama, tiny_model, with_lora
from tiny_training import Fixed, KeepGradients, Pad, Rows, arguments
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import DataCollatorWithFlattening

from oasis.train import SelectionTrainer
from oasis.train.batch.subbatch import take
from oasis.train.head import Head
from oasis.train.loss import summed_cross_entropy
from oasis.train.reuse import ForwardReuse, check_reuse, columns
from oasis.train.scoring import score

MASKS = [[1, 0, 1, 0], [0, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]]
MASKS = [torch.tensor(mask, dtype=torch.bool) for mask in MASKS]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
UNDROPPED = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def whole(kind, **config):
    return lambda dtype: tiny_model(kind, dtype=dtype, **config)


# Model, number type, and how far apart. Grouped products of experts take no float64.
MODELS = {
    "Llama with LoRA": (tiny_llama, torch.float64, 1e-10),
    "Llama with LoRA on all linear layers": (
        lambda d: with_lora(tiny_model(dtype=d), LINEAR),
        torch.float32,
        1e-6,
    ),
    "Llama, LoRA on the last block alone": (
        lambda d: with_lora(tiny_model(dtype=d), layers_to_transform=[1]),
        torch.float64,
        1e-10,
    ),
    "Qwen 3": (whole("qwen3", head_dim=8), torch.float64, 1e-10),
    "Gemma 2, a sliding window": (
        whole("gemma2", head_dim=8, sliding_window=4),
        torch.float64,
        1e-10,
    ),
    "GPT-2": (whole("gpt2", n_embd=32, n_layer=2, n_head=4, **UNDROPPED), torch.float64, 1e-10),
    "Mixtral": (whole("mixtral", **EXPERTS), torch.float32, 1e-6),
}


def prepared(model):
    model.gradient_checkpointing_enable()
    return model.train()


def step(model, batch, rows, reuse=True):
    """Loss and gradients of a training step on `rows` of a batch that has been scored."""
    reused = ForwardReuse(model)
    with reused.keeping() as kept:
        score(model, batch, Head())
    given = columns(kept, batch["labels"].shape) if reuse else {}
    chosen = take({**batch, **given}, rows)
    with reused.training(chosen) as inputs:
        loss = summed_cross_entropy(model, inputs)[0]
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_the_plain_step(name):
    model, dtype, tolerance = MODELS[name]
    batch = padded("right")
    loss, gradients = step(prepared(model(dtype)), batch, [0, 2, 4])
    expected, plain = step(prepared(model(dtype)), batch, [0, 2, 4], reuse=False)
    assert (loss - expected).abs() <= tolerance * expected
    assert gradients.keys() == plain.keys()
    size = sum(value.square().sum() for value in plain.values()).sqrt()
    apart = sum((gradients[n] - value).square().sum() for n, value in plain.items()).sqrt()
    assert apart <= tolerance * size
    assert size > 0


def test_under_autocast_it_runs_again_as_it_ran():
    def one(reuse):
        with torch.autocast("cpu", torch.bfloat16):
            return step(prepared(tiny_llama(torch.float32)), padded("right"), [0, 1], reuse)

    (loss, gradients), (expected, plain) = one(True), one(False)
    assert (loss - expected).abs() <= 1e-2 * expected
    for name, value in plain.items():
        assert (gradients[name] - value).norm() <= 3e-2 * value.norm(), name


def operations(function):
    with FlopCounterMode(display=False) as count:
        function()
    found = count.get_flop_counts()
    blocks = [sum(ops.values()) for name, ops in found.items() if name[:-1].endswith("layers.")]
    return count.get_total_flops(), sum(blocks)


def test_the_forward_of_the_selected_rows_is_gone():
    """Of five rows of a length one is selected: what is saved is a fifth of the blocks' forward."""
    batch = padded("right")
    batch["attention_mask"][:] = 1
    model = prepared(with_lora(tiny_model(), LINEAR))
    _, forward = operations(lambda: score(model, batch, Head()))
    plain, _ = operations(lambda: step(model, batch, [0], reuse=False))
    ours, _ = operations(lambda: step(model, batch, [0]))
    # torch's checkpoint leaves out the last product of the run again, here LoRA's B of rank 4.
    last = 2 * 2 * batch["labels"].shape[1] * 4 * 32
    assert forward > 0 and plain - ours == forward / 5 - last


def trained(path, model, reuse=True, masks=MASKS, **changes):
    keep = KeepGradients()
    options = {"max_steps": 2, "gradient_checkpointing": True, "optim": "sgd", **changes}
    policy = Scored(masks)
    trainer = SelectionTrainer(
        model=model,
        args=arguments(path, **options),
        train_dataset=Rows(48),
        data_collator=Pad("left"),
        policy=policy,
        reuse_forward=reuse,
    )
    trainer.add_callback(keep)
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log], keep.steps


class Scored(Fixed):
    """Selects the given masks after looking at the losses."""

    needs = frozenset({"loss"})


def test_a_training_of_several_steps_is_the_same(tmp_path):
    """With accumulation, of a batch that nothing is selected of too, and padding on the left."""
    losses, steps = trained(tmp_path, tiny_llama(), gradient_accumulation_steps=4)
    expected, plain = trained(tmp_path, tiny_llama(), reuse=False, gradient_accumulation_steps=4)
    assert losses == pytest.approx(expected, rel=1e-6) and len(losses) == 2  # logged as float32
    for ours, theirs in zip(steps, plain, strict=True):
        for name, value in theirs.items():
            if value is not None:
                assert (ours[name] - value).norm() <= 1e-10 * value.norm(), name


def flat(items):
    rows = [{k: item[k].tolist() for k in ("input_ids", "labels")} for item in items]
    return DataCollatorWithFlattening(return_tensors="pt")(rows)


def reusing(path, model=None, policy=None, **changes):
    model = tiny_llama(torch.float32) if model is None else model
    own = {"policy": policy or Scored(MASKS), "mode": changes.pop("mode", "step")}
    own["reuse_forward"] = True
    args = arguments(path, **{"gradient_checkpointing": True, **changes})
    return SelectionTrainer(
        model=model,
        args=args,
        train_dataset=Rows(8),
        data_collator=Pad(),
        **own,
    )


class Odd(nn.Linear):
    """A block that transformers does not checkpoint."""


def odd():
    model = tiny_model()
    model.model.layers = nn.ModuleList([Odd(32, 32), Odd(32, 32)])
    return model


REFUSED = {
    "a policy that scores nothing": ({"policy": "random"}, "a policy that scores nothing"),
    'mode="fill"': ({"mode": "fill"}, "mode='fill'"),
    "no checkpointing": ({"gradient_checkpointing": False}, "without activation checkpointing"),
    "LoRA's dropout": (
        {"model": lambda: with_lora(tiny_model(), lora_dropout=0.1)},
        r"dropout \(base_model.*lora_dropout",
    ),
    "dropout of attention": (
        {"model": lambda: tiny_llama(attention_dropout=0.1)},
        r"LlamaForCausalLM has dropout \(.*self_attn.attention_dropout",
    ),
    "a router's balance": (
        {"model": lambda: tiny_model("mixtral", output_router_logits=True, **EXPERTS)},
        "MixtralForCausalLM has a balancing loss",
    ),
    "torch_compile": ({"torch_compile": True}, "a compiled model"),
    "a learned prompt": (
        {
            "model": lambda: get_peft_model(
                tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
            )
        },
        "a learned prompt",
    ),
    "other blocks": ({"model": odd}, "the blocks of LlamaForCausalLM are Odd"),
}


@pytest.mark.shows(
    "Reused forward (`reuse_forward`)",
    "dropout, no checkpointing, FSDP, DeepSpeed, compiled models, a router's balancing loss, "
    'mode="fill", blocks that transformers does not checkpoint, a learned prompt',
    "refused",
)
@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_go_with_is_refused_by_name(tmp_path, name):
    options, message = dict(REFUSED[name][0]), REFUSED[name][1]
    if "model" in options:
        options["model"] = options["model"]()
    with pytest.raises(ValueError, match=message):
        reusing(tmp_path, **options)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_sharded_weights_are_refused(kind):
    trainer = SimpleNamespace(model=tiny_llama(), args=None)
    trainer.accelerator = SimpleNamespace(distributed_type=DistributedType[kind])
    trainer.args = SimpleNamespace(gradient_checkpointing=True)
    with pytest.raises(ValueError, match=f"got {kind}, expected one process or DDP"):
        check_reuse(trainer, "step", scores=True)


def first_block(model):
    return model.get_base_model().model.layers[0]


def noise(model):
    return model.get_input_embeddings().register_forward_hook(
        lambda module, _, out: out + 0.1 * torch.randn_like(out) * module.training
    )


def foreign(model):
    weight = nn.Parameter(torch.ones(()).double())
    return first_block(model).mlp.register_forward_hook(lambda *_: _[2] * weight)


def shared(model):
    """Hands the block a tensor that needs a gradient."""
    block = first_block(model)
    scale = torch.ones(1).double().requires_grad_()
    return block.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "scale": scale}), with_kwargs=True
    )


def cached(model):
    return first_block(model).register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "shared": {}}), with_kwargs=True
    )


STRANGE = {
    noise: "gives something else in training than in scoring",
    foreign: r"uses a trained weight \(\) that it does not have itself",
    shared: r"a tensor that needs a gradient \(scale\)",
    cached: r"is called with a dict \(shared\)",
}


@pytest.mark.parametrize("change", STRANGE)
def test_a_model_it_cannot_go_with_is_refused_in_the_first_step(change):
    model = prepared(tiny_llama())
    change(model)
    with pytest.raises(
        ValueError, match="LlamaDecoderLayer of LlamaForCausalLM.*" + STRANGE[change]
    ):
        step(model, padded("right"), [0, 2])


def test_each_block_is_called_once():
    model, batch = prepared(tiny_llama()), padded("right")
    reused = ForwardReuse(model)

    def chosen():
        with reused.keeping() as kept:
            score(model, batch, Head())
        return take({**batch, **columns(kept, batch["labels"].shape)}, [0])

    with (
        pytest.raises(RuntimeError, match="was called again"),
        reused.training(chosen()) as inputs,
    ):
        summed_cross_entropy(model, inputs)
        summed_cross_entropy(model, inputs)
    left = pytest.raises(RuntimeError, match="2 of 2 blocks were not called")
    with left, reused.training(chosen()):
        pass
    before = first_block(model)._gradient_checkpointing_func
    assert "checkpoint" in str(before)  # as transformers left it


@pytest.mark.shows(
    "Reused forward (`reuse_forward`)",
    "LoRA or all weights of Llama, Qwen 3, Gemma 2, GPT-2, Mixtral; autocast; rows of several "
    "sequences",
    "works: losses and gradients of the plain step",
)
def test_rows_of_several_sequences_are_reused_too(tmp_path):
    def run(reuse):
        keep, model = KeepGradients(), tiny_llama()
        trainer = SelectionTrainer(
            model=model,
            args=arguments(tmp_path, max_steps=1, gradient_checkpointing=True),
            train_dataset=Rows(8),
            data_collator=flat,
            policy=Scored(MASKS),
            reuse_forward=reuse,
            callbacks=[keep],
        )
        trainer.train()
        return keep.steps[0]

    ours, plain = run(True), run(False)
    for name, value in plain.items():
        if value is not None:
            assert (ours[name] - value).norm() <= 1e-10 * value.norm(), name


def test_a_block_that_runs_twice_in_a_forward_is_refused():
    states = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="block 7 ran 2 times in 1 forwards, expected once"):
        columns({"oasis_block_7": [states, states]}, (2, 3))
