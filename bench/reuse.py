"""What `reuse_forward` saves: a step that scores 16 candidates and trains on some of them, over a
step that trains on all, by counted operations (torch's counter) and by time.

Predicted for LoRA on all layers, where a checkpointed step is a forward, the run again and a
backward of 1.1 forwards, at 25 %: (1 + 0.25 x 3.1) / 3.1 = 0.57 without, (1 + 0.25 x 2.1) / 3.1 =
0.49 with it; all weights trained (a backward of 2): 0.50 and 0.44. The output head is not run again
and is left out of that.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from bench.timing import interleaved, ratio, table
from oasis.names import IGNORED
from oasis.train.batch.subbatch import take
from oasis.train.head import Head
from oasis.train.loss import summed_cross_entropy
from oasis.train.reuse import ForwardReuse, columns
from oasis.train.scoring import score

ROWS, LENGTH, LABELS = 16, 64, 4
TAKEN = (4, 2, 1)
SIZES = {"hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4, "vocab_size": 1024}


def model_of(lora: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2))
    if lora:
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    model.gradient_checkpointing_enable()
    return model.train()


def rows() -> dict:
    ids = torch.randint(3, SIZES["vocab_size"], (ROWS, LENGTH))
    labels = ids.clone()
    labels[:, :-LABELS] = IGNORED
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def train(model: torch.nn.Module, batch: dict, reused: ForwardReuse) -> None:
    with reused.training(batch) as inputs:
        loss, _, _ = summed_cross_entropy(model, inputs)
    loss.backward()
    model.zero_grad()


def selected(model: torch.nn.Module, batch: dict, count: int, reuse: bool) -> None:
    """Score the batch, train on its first `count` rows."""
    reused = ForwardReuse(model)
    reused.checked = True  # what the first step alone looks at
    with reused.keeping() as kept:
        score(model, batch, Head())
    given = columns(kept, batch["labels"].shape) if reuse else {}
    train(model, take({**batch, **given}, list(range(count))), reused)


def operations(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def run() -> None:
    body = []
    for name, lora in (("LoRA on all layers", True), ("all weights", False)):
        model, batch = model_of(lora), rows()
        functions = {"full": lambda m=model, b=batch: train(m, b, ForwardReuse(m))}
        for count in TAKEN:
            for reuse in (False, True):
                functions[count, reuse] = lambda m=model, b=batch, c=count, r=reuse: selected(
                    m, b, c, r
                )
        counted = {key: operations(function) for key, function in functions.items()}
        seconds = interleaved(functions, 3)
        for count in TAKEN:
            cells = [
                f"{value:.2f}"
                for key in ((count, False), (count, True))
                for value in (counted[key] / counted["full"], ratio(seconds[key], seconds["full"]))
            ]
            body.append([name, f"{100 * count / ROWS:g} %", *cells])
    header = ["trained", "ratio", "operations", "time", "operations, reused", "time, reused"]
    table("A step with selection over a step on all candidates, checkpointed", header, body)
