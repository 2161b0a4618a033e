"""`policy="full"` is the plain trainer, step for step; the page says what the tests show."""

import compatibility
import datasets
import pytest
import torch
from tiny_families import t5
from tiny_models import LINEAR, tiny_llama, tiny_model, with_lora
from tiny_sft import SelectingSFT, sft_trainer
from tiny_training import Pad, Rows, arguments
from transformers import DataCollatorWithFlattening, Trainer
from trl import SFTTrainer

from oasis.train import SelectionTrainer
from oasis.train.batch.columns import TASK


def plain_rows(side, width=14):
    collate = Pad(side, width)
    return lambda items: {k: v for k, v in collate(items).items() if k != TASK}


def longest(items):
    """Padded as far as the longest row: what dropout draws depends on the shape."""
    return plain_rows("right", max(len(i["labels"]) for i in items))(items)


def flat(items):
    rows = [{k: i[k].tolist() for k in ("input_ids", "labels")} for i in items]
    return DataCollatorWithFlattening(return_tensors="pt")(rows)


def answers(items):
    """Items as an encoder-decoder has them: what is asked, and what to say."""
    asked = plain_rows("right")(items)
    del asked["labels"]
    said = [item["labels"][item["labels"] != -100] for item in items]
    labels = torch.nn.utils.rnn.pad_sequence(said, batch_first=True, padding_value=-100)
    return {**asked, "labels": labels}


def whole(kind, **config):
    return lambda: tiny_model(kind, dtype=torch.float32, **config)


EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 3, "router_aux_loss_coef": 0.1}
SETUPS = {
    "LoRA, padding on the left": {"collate": plain_rows("left")},
    "LoRA, padding on the right": {"collate": plain_rows("right")},
    "gradient accumulation that an epoch does not divide into": {
        "gradient_accumulation_steps": 4,
        "max_steps": -1,
        "num_train_epochs": 1,
    },
    "label smoothing": {"label_smoothing_factor": 0.1},
    "warm-up, weight decay, clipping": {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 1,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
    },
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bfloat16 autocast, to its precision": {
        "bf16": True,
        "model": whole("llama"),
        "learning_rate": 1e-3,
        "tolerance": 2**-8,
    },
    "all weights trained": {"model": whole("llama")},
    "dropout, padded to the longest": {
        "model": lambda: tiny_llama(attention_dropout=0.3),
        "collate": longest,
    },
    "soft caps (Gemma 2)": {
        "model": whole("gemma2", head_dim=8, final_logit_softcapping=5.0),
    },
    "a mixture of experts with its balancing loss": {
        "model": whole("mixtral", output_router_logits=True, **EXPERTS)
    },
    "LoRA on all linear layers": {
        "model": lambda: with_lora(tiny_model(), LINEAR),
    },
    "an encoder-decoder (T5)": {
        "model": lambda: with_lora(t5().float(), ("q", "v")),
        "collate": answers,
    },
    "rows of several sequences": {"collate": flat},
}
SFT = {
    "nll": {},
    "dft": {"loss_type": "dft"},
    "gradient accumulation": {"gradient_accumulation_steps": 2},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "packing": {"packing": True, "max_length": 40},
    "padding-free": {"padding_free": True, "max_length": None},
    "prompts and completions": {"data": "completions"},
}


def losses_and_weights(trainer):
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    return losses, trainer.model.state_dict()


def assert_equal(ours, theirs, tolerance=2e-6):
    (losses, weights), (expected, parameters) = ours, theirs
    assert losses == pytest.approx(expected, rel=tolerance) and len(losses) >= 2
    if tolerance > 1e-5:
        return  # rounded gradients near zero have either sign, which Adam makes a step of
    for name, value in weights.items():
        # Adam turns tiny gradients into whole steps: compare with the step size.
        assert (value - parameters[name]).abs().max() < 1e-2 * 1e-2, name


@pytest.mark.parametrize("name", SETUPS)
def test_full_is_the_plain_trainer(tmp_path, name):
    options = dict(SETUPS[name])
    model, tolerance = options.pop("model", tiny_llama), options.pop("tolerance", 2e-6)
    collate = options.pop("collate", plain_rows("left"))

    def run(cls, **more):
        return losses_and_weights(
            cls(
                model=model(),
                args=arguments(tmp_path, **{"remove_unused_columns": False, **options}),
                train_dataset=Rows(24),
                data_collator=collate,
                **more,
            )
        )

    assert_equal(run(SelectionTrainer, policy="full"), run(Trainer), tolerance)


def completions():
    words = ["one two three", "four five six seven", "eight one", "two two red"]
    rows = [{"prompt": w, "completion": f" red {c}"} for w in words for c in ("cat", "blue dog")]
    return datasets.Dataset.from_list(rows)


@pytest.mark.parametrize("name", SFT)
def test_full_is_trl_trainer(tmp_path, name):
    options = dict(SFT[name])
    data = completions() if options.pop("data", None) else None
    ours = sft_trainer(SelectingSFT, tmp_path, tiny_llama(), data, policy="full", **options)
    theirs = sft_trainer(SFTTrainer, tmp_path, tiny_llama(), data, **options)
    assert_equal(losses_and_weights(ours), losses_and_weights(theirs))


def test_the_page_is_what_the_tests_show():
    assert compatibility.PAGE.read_text("utf-8") == compatibility.page(), (
        "write it again: python tests/helpers/compatibility.py"
    )
    known = {"Losses", "Models", "Packed rows", "Several processes", "Trainers"}
    assert compatibility.shown().keys() > known | {
        kind for kind, _ in compatibility.TABLES.values()
    }
