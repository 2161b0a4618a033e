"""Record the Gram matrices of all candidate batches of a real run, to replay other readings on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.real_training import trainer_of
from oasis import Selection, policies
from oasis.lab.config import RunConfig
from oasis.lab.workspace import Workspace
from oasis.policies import Policy, Signals


class Recorder:
    """A policy that selects as `policy` does and keeps what a Gram-based one would have seen."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.name = policy.name
        self.needs = policy.needs | {"gram"}
        self.grams: list[Tensor] = []
        self.valid: list[Tensor] = []
        self.masks: list[Tensor] = []

    def observe(self, signals: Signals) -> Selection:
        selection = self.policy.observe(signals)
        self.grams.append(signals.gram.detach().double().cpu())
        self.valid.append((signals.tokens > 0).cpu())
        self.masks.append(selection.mask.cpu())
        return selection

    def state_dict(self) -> dict[str, Any]:
        return dict(self.policy.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state)

    def recording(self) -> Recording:
        return Recording(self.name, self.grams, self.valid, self.masks)


@dataclass
class Recording:
    """The candidate batches of a run, in order.

    policy: that trained on them. grams: [N, N] float64 each. valid: [N] bool, samples with a label
    token. masks: [N] bool, what the policy selected. Batches may differ in N.
    """

    policy: str
    grams: list[Tensor] = field(repr=False)
    valid: list[Tensor] = field(repr=False)
    masks: list[Tensor] = field(repr=False)

    def __len__(self) -> int:
        return len(self.grams)

    def save(self, path: Path) -> None:
        """As .npz: the sizes of the batches, and everything else flattened behind one another."""
        path.parent.mkdir(parents=True, exist_ok=True)
        flat = {
            name: torch.cat([value.flatten() for value in getattr(self, name)]).numpy()
            for name in ("grams", "valid", "masks")
        }
        sizes = np.array([len(gram) for gram in self.grams])
        np.savez_compressed(path, policy=self.policy, sizes=sizes, **flat)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        with np.load(path) as file:
            sizes = file["sizes"]
            grams = np.split(file["grams"], np.cumsum(sizes**2)[:-1])
            ends = np.cumsum(sizes)[:-1]
            return cls(
                str(file["policy"]),
                [torch.tensor(g).view(n, n) for g, n in zip(grams, sizes.tolist(), strict=True)],
                *([torch.tensor(v) for v in np.split(file[k], ends)] for k in ("valid", "masks")),
            )


def record(config: RunConfig, workspace: Workspace, policy: str) -> Recording:
    """Train as `config` says, but by `policy` (options only where it is the config's own)."""
    options = config.policy_options if policy == config.policy else {}
    recorder = Recorder(policies.create(policy, config.ratio, config.seed, **options))
    with trainer_of(config, workspace, recorder) as trainer:
        trainer.train()
    return recorder.recording()
