"""One training on frozen hidden states: a residual adapter before the output head.

h = x + relu(x V) U with x the hidden state of a text, D numbers, and V [D, R], U [R, D] trained by
Adam with the schedule and clipping of the stream's config. A text has one label token, the first of
its answer. What a policy sees comes from `oasis.head_gram` of h, as in a real training.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import oasis
from bench.frozen.texts import Pool, Texts
from oasis.lab.config import RunConfig
from oasis.lab.data.stream import MemoryStream
from oasis.lab.record.accuracy import accuracy_of
from oasis.policies import Policy, Signals

RANK = 64
ROWS = 1 << 32  # more than a task has


class Batch(NamedTuple):
    """N candidates. `text` says which text each of them is: equal numbers, the same text again."""

    hidden: Tensor  # [N, D]
    label: Tensor  # [N], as the others
    task: Tensor
    text: Tensor


@dataclass(frozen=True)
class Stream:
    """What one seed draws from a pool: candidate batches and held-out texts by task."""

    batches: list[Batch]
    test: list[Texts]


@dataclass(frozen=True)
class Outcome:
    """Of one training: mean over the tasks of the accuracy in percent, every answer counted alike
    (macro) and as often as it arrives (micro); the candidates and selected samples."""

    macro: float
    micro: float
    candidates: int
    selected: int


def draw(pool: Pool, config: RunConfig, seed: int) -> Stream:
    """The stream of a seed: which texts of the pool arrive, when, and which are held out.

    Off-task rows are spread evenly over the tasks, those of a task shuffled among its own; a run
    (`Workspace.stream`) spreads them in proportion to the arrivals. Left as it is, since the rows
    that are kept in bench/results hang on it.
    """
    generator = random.Random(f"frozen/{seed}")
    others = config.off_task is not None
    arrivals = []
    for task, count in enumerate(config.arrivals_per_task):
        rows = generator.sample(range(len(pool.train[task].answer)), count)
        arrivals.append([(task, row) for row in rows])
    if others:
        count = round(sum(config.arrivals_per_task) * config.off_task_share)
        off = [(-1, r) for r in generator.sample(range(len(pool.train[-1].answer)), count)]
        ends = [len(off) * k // len(arrivals) for k in range(len(arrivals) + 1)]
        for items, start, end in zip(arrivals, ends, ends[1:], strict=False):
            items += off[start:end]
            generator.shuffle(items)
    stream = MemoryStream(
        [[{"task": task, "row": row} for task, row in items] for items in arrivals],
        batch_size=config.batch_size,
        iterations_per_sample=config.iterations_per_sample,
        capacity=config.memory,
        seed=seed,
    )
    batches = []
    for items in stream.batches():
        hidden = torch.stack([pool.train[i["task"]].hidden[i["row"]] for i in items])
        label = [pool.choices[i["task"]][pool.train[i["task"]].answer[i["row"]]] for i in items]
        task = torch.tensor([i["task"] for i in items])
        text = torch.tensor([i["task"] * ROWS + i["row"] for i in items])
        batches.append(Batch(hidden, torch.stack(label), task, text))
    test = []
    for texts in pool.test:
        rows = torch.tensor(generator.sample(range(len(texts.answer)), len(texts.answer) // 2))
        test.append(Texts(texts.hidden[rows], texts.answer[rows]))
    return Stream(batches, test)


Look = Callable[[Pool, Any, Batch, Policy], Signals]


class Adapter:
    """V, U and their optimizer."""

    def __init__(self, width: int, config: RunConfig, steps: int, seed: int, scale: Tensor):
        generator = torch.Generator().manual_seed(seed)
        self.down = torch.randn(width, RANK, generator=generator) / width**0.5
        self.up = torch.zeros(RANK, width)
        self.weights = [self.down.requires_grad_(), self.up.requires_grad_()]
        self.scale = scale  # root mean square of the hidden states
        self.optimizer = torch.optim.Adam(self.weights, lr=config.learning_rate)
        self.config, self.steps, self.taken = config, steps, 0

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden + self.scale * torch.relu(hidden / self.scale @ self.down) @ self.up

    def rate(self) -> float:
        """Warm-up, plateau, decay to zero at the end (linear; the run's is a cosine)."""
        config = self.config
        warm = min(1.0, (self.taken + 1) / max(1, config.warmup_steps))
        left = (self.steps - self.taken) / max(1, config.decay_steps or 1)
        return config.learning_rate * min(warm, max(0.0, min(1.0, left)))

    def step(self, loss: Tensor | None) -> None:
        """One step of the schedule; without a loss (nothing was selected) nothing moves."""
        if loss is not None:
            self.optimizer.param_groups[0]["lr"] = self.rate()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.weights, self.config.max_grad_norm)
            self.optimizer.step()
        self.taken += 1


def train(
    pool: Pool,
    stream: Stream,
    config: RunConfig,
    policy: Policy,
    seed: int,
    look: Look | None = None,
) -> Outcome:
    """Train one adapter on what `policy` selects of `stream`.

    `look` makes of a batch what the policy is shown of it; `seen` where there is none.
    """
    scale = torch.stack([t.hidden.square().mean() for t in pool.train]).mean().sqrt()
    adapter = Adapter(pool.weight.shape[1], config, len(stream.batches), seed, scale)
    if getattr(policy, "total_batches", 0) is None:
        policy.total_batches = len(stream.batches)
    candidates = selected = 0
    for batch in stream.batches:
        signals = (look or seen)(pool, adapter, batch, policy)
        rows = policy.observe(signals).mask.nonzero().squeeze(1)
        candidates, selected = candidates + len(batch.label), selected + len(rows)
        loss = None
        if len(rows):
            logits = adapter(batch.hidden[rows]) @ pool.weight.T
            loss = F.cross_entropy(logits, batch.label[rows])
        adapter.step(loss)
    macro, micro = accuracy(pool, stream, adapter)
    return Outcome(macro, micro, candidates, selected)


@torch.no_grad()
def seen(pool: Pool, adapter: Callable[[Tensor], Tensor], batch: Batch, policy: Policy) -> Signals:
    """What a policy is shown of a candidate batch."""
    n, needs = len(batch.label), policy.needs
    free = {"task": batch.task, "answer": batch.label}
    if not needs:
        return Signals(n, tokens=torch.ones(n, dtype=torch.int64), **free)
    state = adapter(batch.hidden)
    known = oasis.head_gram(
        state,
        pool.weight,
        batch.label,
        torch.arange(n),
        num_samples=n,
        method="ghost",
        sketch=getattr(policy, "width", 512) if "sketch" in needs else 0,
    )
    names = {"gram", "loss", "entropy", "el2n", "sketch"} & needs
    given = {name: getattr(known, name) for name in names}
    if "features" in needs:
        given["features"] = state
    return Signals(n, tokens=known.tokens, **free, **given)


@torch.no_grad()
def accuracy(pool: Pool, stream: Stream, adapter: Adapter) -> tuple[float, float]:
    """Macro and micro accuracy among each task's choices, means over the tasks, in percent.

    Held-out texts are balanced over the answers, so that micro accuracy, the share of texts that
    are right where answers are as frequent as in training, is a weighted mean over the answers.
    """
    macro, micro = [], []
    for arrived, texts, choices in zip(pool.train, stream.test, pool.choices, strict=False):
        logits = adapter(texts.hidden) @ pool.weight[choices].T
        hit = logits.argmax(1) == texts.answer
        known, counts = texts.answer.unique(return_counts=True)
        right = {
            str(answer): (int((hit & (texts.answer == answer)).sum()), count)
            for answer, count in zip(known.tolist(), counts.tolist(), strict=True)
        }
        often = {answer: int((arrived.answer == int(answer)).sum()) for answer in right}
        macro.append(accuracy_of(right, "macro"))
        micro.append(accuracy_of(right, "micro", often))
    return 100 * fmean(macro), 100 * fmean(micro)
