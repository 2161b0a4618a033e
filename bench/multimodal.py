"""A small stream of pixels and text: `python -m bench multimodal` (about 14 minutes on one core).

Three tasks on scikit-learn's digits (8 x 8 pixels) arrive one after another: name the digit, tell
whether it is more than four, tell whether it is even. A LLaVA of 0.16 million random weights (CLIP
tower, projector, Llama) learns them from candidate batches of an episodic memory; answers are
words, judged by likelihood among the task's choices. Notes: NOTES-multimodal.md.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time

import torch
from sklearn.datasets import load_digits
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

from bench.timing import table
from oasis import policies
from oasis.lab.data.encoding import Collator, encode
from oasis.lab.data.stream import MemoryStream
from oasis.lab.data.tasks import Example
from oasis.lab.record.accuracy import a_avg, a_last
from oasis.lab.report.results import welch
from oasis.train import SelectionTrainer

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TASKS = {  # question, answer by digit
    "name": ("which digit", NAMES),
    "size": ("more than four", ("no",) * 5 + ("yes",) * 5),
    "parity": ("even or odd", ("even", "odd") * 5),
}
PATCHES = 16  # image tokens of an image
HELD_OUT, ARRIVALS = 500, 1000  # images kept for evaluation; samples of each task that arrive
OURS = "oasis"
POLICIES = {  # by label: policy, options
    OURS: ("oasis", {}),
    "without SIREN": ("oasis", {"siren": "none"}),
    "independent draws": ("oasis", {"draw": "bernoulli"}),
    **{name: (name, {}) for name in ("vanilla", "divbs", "gradnorm", "random", "full")},
}
SEEDS = range(10)
RATE = 7e-4  # shared by all; the best for random of five (NOTES-multimodal.md)


def tokenizer() -> PreTrainedTokenizerFast:
    """Words at white space; <image> is one of them."""
    words = ["[PAD]", "[UNK]", "<image>", *NAMES]
    for question, answers in TASKS.values():
        words += [*question.split(), *answers]
    words = list(dict.fromkeys(words))
    split = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="[PAD]", eos_token="[PAD]", unk_token="[UNK]"
    )


def llava(words: PreTrainedTokenizerFast, seed: int) -> LlavaForConditionalGeneration:
    """Image of 8 x 8 in 16 patches; two blocks of width 64 on either side of the projector."""
    width = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    vision = CLIPVisionConfig(
        **width, num_attention_heads=4, image_size=8, patch_size=2, num_channels=1
    )
    text = LlamaConfig(**width, num_attention_heads=4, vocab_size=len(words), use_cache=False)
    text.pad_token_id = words.pad_token_id
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=words.convert_tokens_to_ids("<image>"),
        image_seq_length=PATCHES,
    )
    torch.manual_seed(seed)
    return LlavaForConditionalGeneration(config)


class ImageCollator(Collator):
    """Texts padded, images stacked: one an item."""

    def __call__(self, items):
        return {**super().__call__(items), "pixel_values": torch.stack([i["image"] for i in items])}


@dataclasses.dataclass(frozen=True)
class Data:
    """Encoded items by task: `train` arrives, `test` is held out (the same images for all)."""

    train: list[list[dict]]
    test: list[list[dict]]


def load(words: PreTrainedTokenizerFast, seed: int, arrivals: int = ARRIVALS) -> Data:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    held_out, pool = order[:HELD_OUT], order[HELD_OUT:]
    generator = torch.Generator().manual_seed(seed)
    train, test = [], []
    for question, answers in TASKS.values():
        prompt = f"{' '.join(['<image>'] * PATCHES)} {question}"

        def item(i, prompt=prompt, answers=answers):
            encoded = encode(Example(prompt, answers[digits.target[i]]), words)
            return {**encoded, "image": images[i]}

        drawn = torch.randperm(len(pool), generator=generator)[:arrivals]
        train.append([item(pool[i]) for i in drawn.tolist()])
        test.append([item(i) for i in held_out])
    return Data(train, test)


@torch.no_grad()
def accuracies(model, data: Data, words: PreTrainedTokenizerFast) -> dict[str, float]:
    """Share of the held-out items whose likeliest choice is the answer (one token), by task."""
    model.eval()
    collate, result = ImageCollator(words.pad_token_id), {}
    for (name, (_, answers)), items in zip(TASKS.items(), data.test, strict=True):
        choices = torch.tensor(words.convert_tokens_to_ids(sorted(set(answers))))
        hits = 0
        for start in range(0, len(items), 250):
            batch = collate(items[start : start + 250])
            labels = batch.pop("labels")[:, -1]
            # The last token is the answer; the one before it predicts it.
            logits = model(**batch, logits_to_keep=2).logits[:, 0]
            hits += int((choices[logits[:, choices].argmax(1)] == labels).sum())
        result[name] = hits / len(items)
    model.train()
    return result


def train(
    words: PreTrainedTokenizerFast, data: Data, policy: policies.Policy, seed: int, rate: float
) -> tuple[list[dict], SelectionTrainer, float]:
    """Accuracy at each task boundary, the trainer, and CPU seconds without evaluation."""
    stream = MemoryStream(data.train, seed=seed)
    model, history, away = llava(words, seed), [], 0.0

    class Boundaries(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            nonlocal away
            if state.global_step in stream.boundaries:
                start = time.process_time()
                history.append(accuracies(model, data, words))
                away += time.process_time() - start

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=stream.steps,
            per_device_train_batch_size=stream.batch_size,
            learning_rate=rate,
            lr_scheduler_type="cosine",
            warmup_steps=20,
            weight_decay=0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=seed,
        )
        trainer = SelectionTrainer(
            model=model,
            args=arguments,
            train_dataset=stream,
            data_collator=ImageCollator(words.pad_token_id),
            policy=policy,
            callbacks=[Boundaries()],
        )
        start = time.process_time()
        trainer.train()
        return history, trainer, time.process_time() - start - away


def run() -> None:
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    words, results = tokenizer(), {label: [] for label in POLICIES}
    try:
        for seed in SEEDS:
            data = load(words, seed)
            for label, (name, options) in POLICIES.items():
                policy = policies.create(name, 0.25, seed, **options)
                history, trainer, seconds = train(words, data, policy, seed, RATE)
                counts = trainer.selection_counts
                results[label].append((history, counts.selected, counts.candidates, seconds))
                last = 100 * a_last(history, list(TASKS))
                print(f"seed {seed}, {label}: A_last {last:.1f}, {seconds:.0f} s", flush=True)
    finally:
        logging.set_verbosity(level)
    names, rows, ours = list(TASKS), [], {}
    for label, runs in results.items():
        histories = [history for history, *_ in runs]
        own = [[h[k][name] for k, name in enumerate(names)] for h in histories]
        measures = {
            "A_last": [100 * a_last(h, names) for h in histories],
            "A_avg": [100 * a_avg(h, names) for h in histories],
            "own": [100 * statistics.mean(values) for values in own],
        }
        spread = [
            f"{statistics.mean(m):.1f} +- {statistics.stdev(m):.1f}" for m in measures.values()
        ]
        last = [f"{100 * statistics.mean(h[-1][name] for h in histories):.1f}" for name in names]
        ratio = sum(run[1] for run in runs) / sum(run[2] for run in runs)
        seconds = statistics.mean(run[3] for run in runs)
        ours = ours or measures  # listed first
        tests = [welch(ours[name], measures[name]).p for name in ("A_last", "A_avg")]
        tests = ["-" if label == OURS else f"{p:.3f}" for p in tests]
        rows.append([label, f"{100 * ratio:.1f} %", *spread, *tests, *last, f"{seconds:.0f}"])
    header = ["policy", "trained on", "A_last", "A_avg", "after own task"]
    header += ["p, A_last", "p, A_avg", *(f"{name}, end" for name in names), "CPU s"]
    title = f"A stream of pixels and text, accuracy in %, mean +- sd of {len(SEEDS)} seeds; "
    table(title + "p: Welch's test against ours", header, rows)
