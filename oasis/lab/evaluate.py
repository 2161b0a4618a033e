"""Accuracy among a task's choices by likelihood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from oasis.lab.data.encoding import Collator, answer_ids, encode
from oasis.lab.data.tasks import Task
from oasis.names import IGNORED
from oasis.train.scoring import head_hook, head_parameters, model_inputs, unwrap


def choice_accuracy(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    batch_size: int = 32,
    *,
    max_length: int = 128,
    held_out: int | None = None,
    average: str = "micro",
) -> float:
    """Share of `task.test` (its first `held_out`; None: all) whose likeliest choice is the answer.

    `average` "macro" takes that share for each answer that occurs, and the mean over those.
    Where the choices differ in their first token, one forward on the prompt ranks them by that
    token's probability. Otherwise each choice is scored by the summed log-probability of its
    tokens. Prompts go in batches of similar length. The model's training mode is put back.
    """
    if average not in ("micro", "macro"):
        raise ValueError(f"average: got {average!r}, expected 'micro' or 'macro'")
    examples = task.test[:held_out]
    choices = [answer_ids(choice, tokenizer) for choice in task.choices]
    right = {choice: index for index, choice in enumerate(task.choices)}
    for example in examples:
        if example.answer not in right:
            raise ValueError(
                f"task {task.name!r}: answer {example.answer!r} is not among {task.choices}"
            )
    prompts = []
    for example in examples:
        encoded = encode(example, tokenizer, max_length)
        length = encoded["labels"].count(IGNORED)
        prompts.append(encoded["input_ids"][:length])
    first = [ids[0] for ids in choices]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            if len(set(first)) == len(first):
                best = _by_first_token(model, tokenizer, prompts, first, batch_size)
            else:
                best = _by_likelihood(model, tokenizer, prompts, choices, batch_size)
    finally:
        model.train(training)
    hits: dict[str, list[bool]] = {}
    for example, choice in zip(examples, best, strict=True):
        group = example.answer if average == "macro" else ""
        hits.setdefault(group, []).append(right[example.answer] == choice)
    return sum(sum(group) / len(group) for group in hits.values()) / len(hits)


def _by_first_token(model, tokenizer, prompts, first, batch_size) -> list[int]:
    """Index of the likeliest choice per prompt, by the logits at the prompt's last token.

    Only the rows of the head that belong to the choices are multiplied with. What a model does to
    its logits afterwards (scale, soft cap) rises with them and leaves their order alone.
    """
    best = [0] * len(prompts)
    collate = Collator(pad_id(tokenizer), "right")
    weight, bias = head_parameters(unwrap(model).get_output_embeddings())
    weight, bias = weight[first], None if bias is None else bias[first]
    last, logits = None, None

    def only_choices(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal logits
        found = hidden[torch.arange(len(last)), last].to(weight.dtype)
        logits = torch.nn.functional.linear(found, weight, bias)
        return hidden[:1, -1:]

    with head_hook(model, only_choices):
        for rows in _bucketed([len(prompt) for prompt in prompts], batch_size):
            batch = collate([{"input_ids": prompts[row], "labels": prompts[row]} for row in rows])
            last = batch["attention_mask"].sum(dim=1) - 1
            _logits(model, batch)
            for row, choice in zip(rows, logits.argmax(dim=1).tolist(), strict=True):
                best[row] = choice
    return best


def _by_likelihood(model, tokenizer, prompts, choices, batch_size) -> list[int]:
    """Index of the likeliest choice per prompt, by the sum over the choice's tokens."""
    collate = Collator(pad_id(tokenizer), "right")
    items = [
        {"input_ids": prompt + ids, "labels": [IGNORED] * len(prompt) + ids}
        for prompt in prompts
        for ids in choices
    ]
    scores = torch.empty(len(items), dtype=torch.float64)
    for rows in _bucketed([len(item["input_ids"]) for item in items], batch_size):
        batch = collate([items[row] for row in rows])
        labels = batch["labels"][:, 1:]
        logits = _logits(model, batch)[:, :-1].float().cpu()
        kept = labels != IGNORED
        log_p = torch.zeros(labels.shape, dtype=torch.float64)
        log_p[kept] = (
            logits[kept].log_softmax(-1).gather(1, labels[kept][:, None])[:, 0].to(log_p.dtype)
        )
        scores[torch.tensor(rows)] = log_p.sum(1)
    return scores.view(len(prompts), len(choices)).argmax(1).tolist()


def _logits(model, batch) -> torch.Tensor:
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
    if found is None:
        raise ValueError("tokenizer: expected a pad_token or an eos_token, got neither")
    return found
