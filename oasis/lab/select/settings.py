"""What `oasis select` is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oasis import policies
from oasis.lab.data.own.rows import check_source
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.preflight import check_model
from oasis.lab.select.files import Files
from oasis.train.names import LAYERS


@dataclass(frozen=True)
class SelectSettings:
    """Settings of a selection.

    Args:
        model: "smollm2", a folder with a causal language model, or a hub name.
        data: where the rows are; `test` and `answers` are of no use here.
        out: the .jsonl file for the kept rows.
        ratio, policy, options, seed: of the policy (`oasis.policies.create`). `oasis` without a
            preset has the draw "even" where none is given: a file ends, so each batch gets its
            share.
        batch_size: rows that compete with each other, in the order of the file.
        max_length: tokens that are scored of a row.
        layer: whose gradients score, see `oasis.train.SelectionTrainer`.
        device, dtype: "auto", or what torch calls them.
    """

    model: str
    data: DataSettings
    out: Path
    ratio: float = 0.25
    policy: str = "oasis"
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch_size: int = 16
    max_length: int = 1024
    layer: str = "head"
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size: got {self.batch_size}, expected at least 1")
        if self.max_length < 2:
            raise ValueError(f"max_length: got {self.max_length}, expected at least 2")
        if self.layer not in LAYERS:
            raise ValueError(f"layer: got {self.layer!r}, expected one of {', '.join(LAYERS)}")
        if self.out.suffix != ".jsonl":
            raise ValueError(f"out: got {self.out}, expected a .jsonl file (one row a line)")
        if self.data.test:
            raise ValueError("data.test: of no use here, where nothing is held out")

    def check(self) -> None:
        """ValueError or FileNotFoundError for what is not there, or would be written over, before
        anything is loaded.
        """
        choose_dtype(self.dtype, choose_device(self.device))
        check_model(self.model)
        for source in self.data.path:
            check_source(source)
            Files(self.out).refuse_source(source)
        self.make_policy()

    def make_policy(self) -> policies.Policy:
        """A fresh policy. ValueError where it does not take an option."""
        try:
            plain = self.policy == "oasis" and "preset" not in self.options
            options = {"draw": "even"} | self.options if plain else self.options
            return policies.create(self.policy, self.ratio, self.seed, **options)
        except TypeError as error:
            raise ValueError(f"policy {self.policy!r}: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """What the outcome depends on, as JSON has it."""
        names = ("model", "ratio", "policy", "options", "seed", "batch_size", "max_length")
        more = ("layer", "device", "dtype")
        return {
            "data": self.data.model_dump(exclude_defaults=True),
            **{name: getattr(self, name) for name in names + more},
        }
