"""How copies of a trained model rank candidates, against the model itself: `python -m bench copies
RUN...`, finished runs of packaged tasks. What `score_with` may be given: the model in bfloat16,
with the weights of its blocks in int8, with activations in int8 too, and as it was before training.

The reference is the trained model in float32, its LoRA weights added to the others. By each copy
`BATCHES` candidate batches, spread over the stream, are scored; the rank correlation with the
reference is inside a batch, of the gradient's norm and of the loss.
"""

from __future__ import annotations

import copy
import time
import warnings
from pathlib import Path

import torch
from torch import nn

from bench.ranks import agreement
from bench.timing import table
from oasis.lab import model as models
from oasis.lab.config import RunConfig
from oasis.lab.record.log import ADAPTER
from oasis.lab.run import saved_settings
from oasis.lab.workspace import Workspace
from oasis.train.batch.columns import ITEM, TASK
from oasis.train.batch.subbatch import right_padded
from oasis.train.scoring import inspect_head
from oasis.train.signals.compute import compute

BATCHES, QUARTER = 12, 4  # candidate batches; of 16 candidates


def int8(model: nn.Module) -> nn.Module:
    """A copy whose blocks have their linear layers in int8, a scale for each row of a weight, and
    activations quantised as they come.
    """
    made = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch moves this to torchao
        by_row = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        made.model = torch.ao.quantization.quantize_dynamic(made.model, by_row)
    return made


@torch.no_grad()
def int8_weights(model: nn.Module) -> nn.Module:
    """A copy whose blocks' weights are rounded to int8 with a scale for each row, and multiplied in
    float32: what weight-only quantisation computes, not how fast.
    """
    made = copy.deepcopy(model)
    for module in made.model.modules():
        if isinstance(module, nn.Linear):
            scale = module.weight.abs().amax(dim=1, keepdim=True) / 127
            module.weight.copy_((module.weight / scale).round() * scale)
    return made


def trained(workspace: Workspace, config: RunConfig) -> nn.Module:
    """The run's model at its end, without adapters."""
    of_run = models.attach_lora(
        copy.deepcopy(workspace.base),
        rank=config.rank,
        alpha=config.alpha,
        layers=config.lora_layers,
        seed=0,
    )
    models.load_lora(of_run, config.directory / ADAPTER)
    return of_run.merge_and_unload().eval()


def candidates(workspace: Workspace, config: RunConfig) -> list[dict]:
    """Some of the stream's batches, as the trainer scores them."""
    every = list(workspace.stream(config).batches())
    found = []
    for items in every[:: len(every) // BATCHES][:BATCHES]:
        batch = workspace.collator(items)
        found.append(right_padded({k: v for k, v in batch.items() if k not in (TASK, ITEM)}))
    return found


def scores(model: nn.Module, batches: list[dict]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of each batch the squared norms and the losses of its candidates, [N] each."""
    head = inspect_head(model, batches[0])
    found = [compute(model, batch, head, frozenset({"gram", "loss"})) for batch in batches]
    return [one["gram"].diagonal() for one in found], [one["loss"] for one in found]


def _cells(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> list[str]:
    rank, shared = agreement(list(zip(ours, theirs, strict=True)), QUARTER)
    return [f"{rank:.3f}", f"{shared:.2f}"]


def main(runs: list[str]) -> None:
    body = []
    for name in runs:
        folder = Path(name)
        saved = saved_settings(folder) | {"name": folder.name, "out": str(folder.parent)}
        config = RunConfig.from_mapping(
            saved | {"cache_frozen": False, "cache_folder": None, "dtype": "float32"}
        )
        workspace = Workspace(config)
        model, batches = trained(workspace, config), candidates(workspace, config)
        copies = {
            "bfloat16": lambda m=model: copy.deepcopy(m).bfloat16(),
            "int8, weights alone": lambda m=model: int8_weights(m),
            "int8": lambda m=model: int8(m),
            "before training": lambda w=workspace: w.base,
        }
        scores(model, batches[:1])  # the first forward warms up
        start = time.perf_counter()
        norms, losses = scores(model, batches)
        whole = time.perf_counter() - start
        for kind, make in copies.items():
            made = make()
            scores(made, batches[:1])
            start = time.perf_counter()
            own = scores(made, batches)
            taken = time.perf_counter() - start
            cells = [*_cells(own[0], norms), *_cells(own[1], losses)]
            body.append([folder.name, kind, *cells, f"{taken / whole:.2f}"])
    header = ["run", "copy", "by norm", "top quarter", "by loss", "top quarter", "time"]
    table("Scores by a copy, against the trained model in float32", header, body)
