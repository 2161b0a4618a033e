"""A short LoRA training with selection on the card: all samples against a quarter of them."""

from __future__ import annotations

import tempfile
import time

import torch

from bench.device.bench import Bench
from bench.device.sheet import Row
from oasis.names import IGNORED

TOKENS = 256  # of a sample, the second half of them labels
WARM = 10  # steps that are not timed: they compile and allocate


def training(bench: Bench) -> None:
    """Seconds a step of a small Llama of random weights on random text, by policy."""
    try:
        import peft
        import transformers  # noqa: F401
    except ImportError as error:
        bench.add(Row("training", "LoRA", None, note=f"not run: {error}"))
        return
    from oasis.train import SelectionTrainer

    width, layers, heads, vocabulary = bench.sizes.student
    name = f"LoRA, {layers} layers of {width}, {bench.sizes.samples} x {TOKENS} tokens, a step"
    full = None
    for policy in ("full", "oasis"):
        model = _model(width, layers, heads, vocabulary).to(bench.device, torch.bfloat16)
        lora = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        case = f"{name}, {'all' if policy == 'full' else '25 % selected'}"
        try:
            seconds = _seconds(SelectionTrainer, peft.get_peft_model(model, lora), policy, bench)
        except Exception as error:  # the figures above are worth more than this
            bench.failed.append(f"training, {policy}: {type(error).__name__}: {error}")
            note = f"failed: {str(error).splitlines()[0]}".replace("|", "/")
            bench.add(Row("training", case, None, note=note))
            continue
        note = "" if full is None else f"{seconds / full:.2f} x all"
        full = full or seconds
        bench.add(Row("training", case, seconds, note=note))


def _model(width: int, layers: int, heads: int, vocabulary: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 4),
            max_position_embeddings=TOKENS,
        )
    )


def _seconds(trainer_class, model, policy: str, bench: Bench) -> float:
    """Median seconds of an optimizer step, the first ones left out."""
    from transformers import PrinterCallback, TrainerCallback, TrainingArguments

    wait, ends = bench.clock.wait, []

    class Steps(TrainerCallback):
        def on_step_end(self, *_, **__):
            wait()
            ends.append(time.perf_counter())

    samples, steps = bench.sizes.samples, bench.sizes.steps
    ids = torch.randint(1, model.config.vocab_size, (64, TOKENS))
    labels = ids.clone()
    labels[:, : TOKENS // 2] = IGNORED
    rows = [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]
    warm = min(WARM, steps - 1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=samples, save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not bench.gpu,
            bf16=bench.gpu,
        )  # fmt: skip
        trainer = trainer_class(
            model=model, args=arguments, train_dataset=rows, policy=policy, callbacks=[Steps()]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    times = torch.tensor(ends).double().diff()[warm - 1 :]
    return float(times.median())
