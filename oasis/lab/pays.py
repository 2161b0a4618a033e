"""At which ratio selection pays on this machine: `oasis doctor --time MODEL`.

Scoring a batch, training on all of it and on parts of it, timed turn by turn on random tokens. With
them a step that selects a share of the batch costs the scoring and a step on that share; it pays
where that is less than the step on all. What is selected must be better than as much compute spent
on samples at random: that share is said too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from oasis.lab.model import attach_lora, load_model
from oasis.names import IGNORED
from oasis.train.batch.subbatch import take
from oasis.train.loss import summed_cross_entropy
from oasis.train.models import text_config
from oasis.train.reuse import ForwardReuse, columns
from oasis.train.scoring import inspect_head, score

RATIOS = (0.0625, 0.125, 0.25, 0.5)


@dataclass(frozen=True)
class Setup:
    """What is timed: `length` tokens a row, `labels` of them label tokens; LoRA of `rank` on the
    `lora_layers` top blocks (None: on all), or with rank 0 all weights.
    """

    length: int = 256
    labels: int = 32
    rank: int = 16
    lora_layers: int | None = None
    checkpointing: bool = False
    reuse_forward: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.labels < self.length:
            raise ValueError(
                f"labels: got {self.labels}, expected 1 to {self.length - 1} (length - 1)"
            )
        if self.reuse_forward and not self.checkpointing:
            raise ValueError(
                "reuse_forward: got it without checkpointing, expected both or neither"
            )


@dataclass(frozen=True)
class Times:
    """Seconds of scoring `batch` rows, of a training step on all of them, and of one on fewer that
    have been scored, by their number (1 and `batch` among them).
    """

    batch: int
    scoring: float
    full: float
    selected: Mapping[int, float]

    def step(self, rows: float) -> float:
        """Seconds of a step on that many rows, between those measured; of less than one row, that
        share of the steps on one.
        """
        known = sorted(self.selected)
        if rows <= known[0]:
            return self.selected[known[0]] * rows / known[0]
        upper = next(number for number in known if number >= rows)
        lower = max(number for number in known if number <= rows)
        if upper == lower:
            return self.selected[upper]
        share = (rows - lower) / (upper - lower)
        return (1 - share) * self.selected[lower] + share * self.selected[upper]

    def cost(self, ratio: float) -> float:
        """Scoring all and training on `ratio` of them, over training on all."""
        return (self.scoring + self.step(ratio * self.batch)) / self.full

    def pays_below(self) -> float | None:
        """The ratio at which that is 1; None where it is not less at a single row."""
        low, high = 1 / self.batch, 1.0
        if self.cost(low) >= 1:
            return None
        if self.cost(high) < 1:
            return 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.cost(middle) < 1 else (low, middle)
        return low


def prepared(name: str, setup: Setup, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model as it trains."""
    model: nn.Module = load_model(name, device, dtype)
    if setup.rank:
        model = attach_lora(model, rank=setup.rank, alpha=None, layers=setup.lora_layers, seed=0)
    else:
        model.requires_grad_(True)
    if setup.checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def rows(model: nn.Module, count: int, setup: Setup) -> dict:
    """Random tokens, the last of each row its labels."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    size = count, setup.length
    ids = torch.randint(text_config(model).vocab_size, size, generator=generator).to(device)
    labels = ids.clone()
    labels[:, : -setup.labels] = IGNORED
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def measure(model: nn.Module, batch_size: int, setup: Setup, seconds: float) -> Times:
    """Times of batches of that size, medians over as many rounds as fit into `seconds`."""
    batch = rows(model, batch_size, setup)
    head = inspect_head(model, batch)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    given = {}
    reused = ForwardReuse(model)
    if setup.reuse_forward:
        with reused.keeping() as kept:
            score(model, batch, head)
        given = columns(kept, batch["labels"].shape)

    def train(chosen: dict) -> None:
        with reused.training(chosen) as inputs:
            loss, _, _ = summed_cross_entropy(model, inputs, gather=head.gather)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    parts = sorted({1, *(max(1, round(ratio * batch_size)) for ratio in RATIOS), batch_size})
    functions: dict[str | int, Callable[[], object]] = {
        "scoring": lambda: score(model, batch, head),
        "full": lambda: train(batch),
    }
    for part in parts:
        functions[part] = lambda part=part: train(take({**batch, **given}, list(range(part))))
    found = _turn_by_turn(functions, batch["labels"].device, seconds)
    return Times(batch_size, found["scoring"], found["full"], {part: found[part] for part in parts})


def _turn_by_turn(functions: dict, device: torch.device, seconds: float) -> dict:
    """Median seconds of each, after a first round that does not count; three rounds at least."""
    taken: dict = {name: [] for name in functions}
    began = time.perf_counter()
    while len(taken["full"]) < 4 or time.perf_counter() - began < seconds:
        for name, function in functions.items():
            start = _now(device)
            function()
            taken[name].append(_now(device) - start)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def lines(found: list[Times]) -> list[str]:
    """What was found, to be read."""
    head = "".join(f"{f'{100 * ratio:g} %':>9}" for ratio in RATIOS)
    out = [f"{'batch':>5}{'scoring':>11}{'step on all':>13}{head}{'pays below':>12}"]
    for times in found:
        costs = "".join(
            f"{times.cost(ratio):9.2f}" if ratio * times.batch >= 1 else f"{'-':>9}"
            for ratio in RATIOS
        )
        below = times.pays_below()
        said = "never" if below is None else f"{100 * below:.0f} %"
        seconds = f"{1e3 * times.scoring:8.1f} ms{1e3 * times.full:10.1f} ms"
        out.append(f"{times.batch:5}{seconds}{costs}{said:>12}")
    out.append(
        "A column in %: what scoring a batch and training on that share of it takes of a step on "
        "all of it. At random one trains on about that share in the time: it is what to beat."
    )
    if all(times.pays_below() is None for times in found):
        out.append(
            "Selection does not pay here: scoring takes as long as a training step on all would."
        )
    return out
