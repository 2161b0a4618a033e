"""Hidden states of a frozen model where a text's answer is predicted, once per text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from oasis.lab import model as models
from oasis.lab.config import RunConfig
from oasis.lab.data import tasks as task_sources
from oasis.lab.data.encoded import encode_examples, prompt_of
from oasis.lab.data.encoding import Collator, answer_ids
from oasis.lab.data.repeats import with_repeats
from oasis.lab.data.tasks import Example
from oasis.lab.device import choose_dtype
from oasis.lab.evaluate import last_states, pad_id
from oasis.train.head import head_weight, output_head
from oasis.train.scoring import evaluating

POOL = 1.5  # texts in the pool for each that a seed draws
HELD_OUT = 300  # of each task, of which a seed draws half
SHORTLIST = 2048  # tokens of the vocabulary that are kept beside the answers'


@dataclass(frozen=True)
class Texts:
    """P texts of one task. hidden [P, D] float32; answer [P] int64, index into `choices`."""

    hidden: Tensor
    answer: Tensor


@dataclass(frozen=True)
class Pool:
    """What all seeds draw from.

    train, test: texts by task; the last of `train` are the off-task rows, if there are any.
    choices: by task (off-task rows included), the first tokens of its answers as rows of `weight`.
    weight [V, D] float32: rows of the output head, those of all answers and of the `SHORTLIST`
    tokens that are likeliest over the pool.
    """

    train: list[Texts]
    test: list[Texts]
    choices: list[Tensor]
    weight: Tensor


def pool(config: RunConfig, path: Path) -> Pool:
    """The pool of a stream's config, from `path` where it has been made before."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_made(config), path)
    made = torch.load(path)
    train, test = ([Texts(*pair) for pair in made[part]] for part in ("train", "test"))
    return Pool(train, test, made["choices"], made["weight"])


def _made(config: RunConfig) -> dict:
    device = torch.device("cpu")
    tokenizer = models.load_tokenizer(config.model)
    model = models.load_model(config.model, device, choose_dtype("auto", device))
    examples, choices = _examples(config)
    first = [[answer_ids(choice, tokenizer)[0] for choice in names] for names in choices]
    hidden = {}
    for part, lists in examples.items():
        hidden[part] = []
        for index, texts in enumerate(lists):
            print(f"{part} {index + 1} of {len(lists)}: {len(texts)} texts", flush=True)
            states = _hidden(model, tokenizer, texts, config.max_length)
            where = {name: place for place, name in enumerate(choices[index])}
            answers = torch.tensor([where[text.answer] for text in texts])
            hidden[part].append((states, answers))
    weight = head_weight(output_head(model)).whole()
    kept = _shortlist(weight.detach().float(), [h for h, _ in hidden["train"]], first)
    place = {int(token): row for row, token in enumerate(kept)}
    rows = [torch.tensor([place[token] for token in tokens]) for tokens in first]
    return {**hidden, "choices": rows, "weight": weight.detach()[kept].float()}


def _examples(config: RunConfig) -> tuple[dict[str, list[list[Example]]], list[tuple[str, ...]]]:
    """Training and held-out texts by task, and the choices of each; near-duplicates included.

    As `oasis.lab.data.prepare` reads them, but for the seeds of near-duplicates and of off-task
    rows: the rows that are kept in bench/results hang on these.
    """
    train, test, choices = [], [], []
    for name, arrivals in zip(config.tasks, config.arrivals_per_task, strict=True):
        repeats = int(POOL * arrivals * config.repeats)
        task = task_sources.load(
            name,
            train=int(POOL * arrivals) - repeats,
            test=HELD_OUT,
            words=config.words,
            seed=config.data_seed,
            balanced=config.accuracy == "macro",
        )
        task = replace(task, train=with_repeats(task.train, repeats, f"{name}/pool"))
        train.append(task.train)
        test.append(task.test)
        choices.append(task.choices)
    if config.off_task is not None:
        count = round(POOL * sum(config.arrivals_per_task) * config.off_task_share)
        task = task_sources.load(config.off_task, train=count, test=1, words=config.words)
        train.append(task.train)
        choices.append(task.choices)
    return {"train": train, "test": test}, choices


def _hidden(model, tokenizer, texts: list[Example], max_length: int) -> Tensor:
    """[P, D] float32: what enters the head at the last token of each prompt."""
    prompts = [prompt_of(item) for item in encode_examples(texts, tokenizer, max_length)]
    items = [{"input_ids": prompt, "labels": prompt} for prompt in prompts]
    with evaluating(model):
        return last_states(model, Collator(pad_id(tokenizer), "right"), items, 64).float()


def _shortlist(weight: Tensor, hidden: list[Tensor], first: list[list[int]]) -> Tensor:
    """Ascending rows of the head to keep."""
    likely = torch.zeros(len(weight))
    for states in hidden:
        for chunk in states.split(512):
            likely += (chunk @ weight.T).softmax(1).sum(0)
    answers = {token for tokens in first for token in tokens}
    best = likely.argsort(descending=True)[: SHORTLIST + len(answers)].tolist()
    others = [token for token in best if token not in answers][:SHORTLIST]
    return torch.tensor(sorted([*answers, *others]))
