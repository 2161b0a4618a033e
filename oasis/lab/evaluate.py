"""Accuracy among a task's choices by likelihood; held-out loss and scores of free text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from oasis.lab.data.encoded import EncodedTask, prompt_of
from oasis.lab.data.encoding import Collator
from oasis.lab.metrics import METRICS
from oasis.lab.record.accuracy import accuracy_of
from oasis.names import IGNORED
from oasis.train.batch.subbatch import targets
from oasis.train.head import head_weight, output_head
from oasis.train.loss import summed_cross_entropy
from oasis.train.models import unwrap
from oasis.train.scoring import evaluating, head_hook, model_inputs

Collate = Callable[[Sequence[dict]], dict[str, torch.Tensor]]  # padded on the right


def choice_accuracy(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: EncodedTask,
    batch_size: int = 32,
    *,
    held_out: int | None = None,
    average: str = "micro",
    collate: Collate | None = None,
) -> float:
    """Share of `task.test` (its first `held_out`; None: all) whose likeliest choice is the answer.

    `average` "macro" takes that share for each answer that occurs, and the mean over those. What is
    right, and how it is found: `answers_right`.
    """
    hits = answers_right(model, tokenizer, task, batch_size, held_out=held_out, collate=collate)
    return accuracy_of(hits, average)


def answers_right(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: EncodedTask,
    batch_size: int = 32,
    *,
    held_out: int | None = None,
    collate: Collate | None = None,
) -> dict[str, tuple[int, int]]:
    """Of each answer that occurs, how many held-out examples are right and how many there are.

    An answer that is none of the choices is never right.
    Where the choices differ in their first token, one forward on the prompt ranks them by that
    token's probability. Otherwise each choice is scored by the summed log-probability of its
    tokens. Prompts go in batches of similar length, made by `collate` (None: of text alone). The
    model's training mode is put back.
    """
    items = list(task.test[:held_out])
    collate = collate or Collator(pad_id(tokenizer), "right")
    hits: dict[str, tuple[int, int]] = {}
    for style, choices in task.choice_ids.items():
        group = [item for item in items if item.get("style", "") == style]
        prompts = [_asking(item) for item in group]
        first = [ids[0] for ids in choices]
        with evaluating(model):
            if len(set(first)) == len(first):
                best = _by_first_token(model, collate, prompts, first, batch_size)
            else:
                best = _by_likelihood(model, collate, prompts, choices, batch_size)
        for item, choice in zip(group, best, strict=True):
            answer = item["answer"]
            right, of = hits.get(answer, (0, 0))
            hits[answer] = right + (task.choices[choice] == answer), of + 1
    return hits


def held_out_loss(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[dict],
    batch_size: int = 32,
    collate: Collate | None = None,
) -> float:
    """Mean cross-entropy of a label token of `items`, in nats; exp of it is the perplexity.

    `collate` makes their batches (None: of text alone), padded on the right.
    """
    device = next(model.parameters()).device
    collate = collate or Collator(pad_id(tokenizer), "right")
    total, count = 0.0, 0
    with evaluating(model):
        for rows in _bucketed([len(item["input_ids"]) for item in items], batch_size):
            batch = collate([items[row] for row in rows])
            batch = {name: values.to(device) for name, values in batch.items()}
            # Logits of every position: a head whose input may not be gathered is one too.
            loss, tokens, _ = summed_cross_entropy(model, batch, gather=False)
            total, count = total + float(loss), count + int(tokens)
    return total / count


def _asking(item: dict) -> dict:
    """An item without its answer."""
    ids = prompt_of(item)
    return {**item, "input_ids": ids, "labels": ids}


class _Generator(Protocol):
    """A causal language model of transformers, or PEFT's around one."""

    def generate(self, **options: Any) -> Tensor: ...


def generated_score(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[dict],
    metric: str,
    batch_size: int = 32,
) -> float:
    """Score in [0, 1] by `metric` (see `oasis.lab.metrics`) of what the model generates for the
    prompts of `items`, token by token the likeliest, up to half as many again as the longest answer
    has.
    """
    device = next(model.parameters()).device
    prompts = [prompt_of(item) for item in items]
    lengths = [
        len(item["input_ids"]) - len(prompt) for item, prompt in zip(items, prompts, strict=True)
    ]
    most = max(lengths) + max(lengths) // 2
    collate = Collator(pad_id(tokenizer), "left")
    texts = [""] * len(items)
    generator = cast(_Generator, unwrap(model))
    with evaluating(model):
        for rows in _bucketed([len(prompt) for prompt in prompts], batch_size):
            batch = collate([{"input_ids": prompts[row], "labels": prompts[row]} for row in rows])
            made = generator.generate(
                input_ids=batch["input_ids"].to(device),
                attention_mask=batch["attention_mask"].to(device),
                max_new_tokens=most,
                do_sample=False,
                pad_token_id=pad_id(tokenizer),
                use_cache=True,
            )
            new = made[:, batch["input_ids"].shape[1] :]
            for row, text in zip(
                rows, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True
            ):
                texts[row] = text.strip()
    asked = tokenizer.batch_decode(prompts, skip_special_tokens=True)
    return METRICS[metric](texts, [item["answer"] for item in items], asked)


def last_states(
    model: torch.nn.Module, collate: Collate, prompts: Sequence[dict], batch_size: int = 32
) -> Tensor:
    """[P, D]: what enters the output head at the last token of each of P prompts (items).

    One forward of `model` as it is (see `evaluating`) for prompts of similar length; the head gets
    a single position.
    """
    states: list[Tensor] = [torch.empty(0)] * len(prompts)
    rows: list[int] = []
    last = torch.empty(0)

    def keep(head: torch.nn.Module, hidden: Tensor) -> Tensor:
        for row, state in zip(rows, hidden[torch.arange(len(rows)), last], strict=True):
            states[row] = state
        return hidden[:1, -1:]

    with head_hook(model, keep):
        for rows in _bucketed([len(prompt["input_ids"]) for prompt in prompts], batch_size):
            batch = collate([prompts[row] for row in rows])
            last = batch["attention_mask"].sum(dim=1) - 1
            _logits(model, batch)
    return torch.stack(states)


def _by_first_token(model, collate, prompts, first, batch_size) -> list[int]:
    """Index of the likeliest choice per prompt, by the logits at the prompt's last token.

    Only the rows of the head that belong to the choices are multiplied with. What a model does to
    its logits afterwards (scale, soft cap) rises with them and leaves their order alone.
    """
    weight, bias = head_weight(output_head(model)).at(first)
    states = last_states(model, collate, prompts, batch_size).to(weight.dtype)
    return F.linear(states, weight, bias).argmax(dim=1).tolist()


def _by_likelihood(model, collate, prompts, choices, batch_size) -> list[int]:
    """Index of the likeliest choice per prompt, by the sum over the choice's tokens."""
    items = [
        {
            **prompt,
            "input_ids": prompt["input_ids"] + ids,
            "labels": [IGNORED] * len(prompt["input_ids"]) + ids,
        }
        for prompt in prompts
        for ids in choices
    ]
    scores = torch.empty(len(items), dtype=torch.float64)
    for rows in _bucketed([len(item["input_ids"]) for item in items], batch_size):
        batch = collate([items[row] for row in rows])
        kept = targets(batch["labels"])
        # Of all logits [N, L, V] none are copied but those of the choices' tokens.
        logits = _logits(model, batch)[kept].float()
        wanted = batch["labels"].roll(-1, dims=1)[kept].to(logits.device)
        log_p = torch.zeros(kept.shape, dtype=torch.float64)
        log_p[kept] = -F.cross_entropy(logits, wanted, reduction="none").cpu().double()
        scores[torch.tensor(rows)] = log_p.sum(1)
    return scores.view(len(prompts), len(choices)).argmax(1).tolist()


def _logits(model, batch) -> Tensor:
    device = next(model.parameters()).device
    batch = {name: values.to(device) for name, values in batch.items()}
    return model(**model_inputs(model, batch)).logits


def _bucketed(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Row numbers in batches of similar length, so that little is padding."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's padding token, or its end-of-sequence token where it has none."""
    found = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    if not isinstance(found, int):
        raise ValueError("tokenizer: expected a pad_token or an eos_token, got neither")
    return found
