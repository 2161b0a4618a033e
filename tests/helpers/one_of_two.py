"""One of two processes that test_two_processes.py starts: python one_of_two.py FOLDER."""

import os
import sys

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from tiny_models import LINEAR, tiny_llama, tiny_model, with_lora
from tiny_sft import SelectingSFT, sft_rows, sft_trainer
from tiny_training import Fixed, Pad, Rows, arguments, selection_trainer
from torch.distributed.fsdp import FSDPModule, fully_shard

from oasis import Selector
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import TASK
from oasis.train.head import Head
from oasis.train.signals.compute import compute

MASKS = (
    ((1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 0)),
    ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1)),
)
DRAWN = ("random", "greats")  # by name; greats draws rows of earlier batches besides
SHARDED = {
    "fsdp": True,
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
}


class Keeping(Fixed):
    """Selects the given masks and keeps the signals."""

    needs = frozenset({"gram", "full_grads", "middle_grads"})

    def __init__(self, masks, needs=needs):
        super().__init__(masks)
        self.needs, self.signals = needs, []

    def observe(self, signals):
        self.signals.append({name: getattr(signals, name) for name in self.needs})
        return super().observe(signals)


def sharded_model(**config):
    return with_lora(tiny_model(dtype=torch.float32), LINEAR, **config)


def small():
    """A model to score with, beside that which is trained."""
    return tiny_model(seed=5, num_hidden_layers=1, hidden_size=16)


class Blank(Pad):
    """The first batch has no label."""

    calls = 0

    def __call__(self, items):
        batch, self.calls = super().__call__(items), self.calls + 1
        return batch | {"labels": batch["labels"].fill_(-100)} if self.calls == 1 else batch


def train(args, model, policy, layer: str = "head", collate=None, **options) -> dict:
    """As many steps as `args` say: the batches, the trained parameters, the losses."""
    trainer = SelectionTrainer(
        model=model,
        args=args,
        train_dataset=Rows(48),
        data_collator=collate or Pad(),
        policy=policy,
        layer=layer,
        **options,
    )
    return trained(trainer)


def trained(trainer) -> dict:
    args, model = trainer.args, trainer.model
    seen, select = [], trainer._select
    trainer._select = lambda batch: seen.append(dict(batch)) or select(batch)
    trainer.train()
    assert isinstance(trainer.model_wrapped, FSDPModule) == bool(args.fsdp)
    whole = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    whole = {n: getattr(p, "full_tensor", lambda p=p: p)() for n, p in whole.items()}
    logs = trainer.state.log_history
    losses = [log["loss"] for log in logs if "loss" in log]
    counts = trainer.selection_counts
    return {
        **{"seen": seen, "parameters": whole, "losses": losses},
        "selected": counts.selected,
        "logged": [log["selected"] for log in logs if "selected" in log],
    }


class Scored(Fixed):
    """Selects the given masks after a scoring forward."""

    needs = frozenset({"loss"})


def own_selector(folder: str, rank: int) -> dict:
    """A selector that is part of the model which DDP wraps."""
    model = tiny_llama()
    model.selector = Selector(0.25, seed=rank)
    result = train(arguments(folder, max_steps=6), model, model.selector)
    return result | {"state": dict(model.selector.state_dict())}


def filled(folder: str) -> dict:
    """Of rank 0 every fourth row is selected, of rank 1 every second one."""
    masks = [[1, 0, 0, 0], [1, 0, 1, 0]][int(os.environ["RANK"])]
    trainer = SelectionTrainer(
        model=tiny_llama(),
        args=arguments(folder, max_steps=2),
        train_dataset=Rows(48),
        data_collator=Pad(),
        policy=Fixed([torch.tensor(masks, dtype=torch.bool)]),
        mode="fill",
    )
    sizes, samples = [], trainer.get_batch_samples

    def spy(*args):
        found = samples(*args)
        sizes.extend(len(batch["labels"]) for batch in found[0])
        return found

    trainer.get_batch_samples = spy
    result = trained(trainer)
    return result | {"sizes": sizes, "waiting": len(trainer._selection.fill.rows)}


def with_trl(folder: str, masks: list[torch.Tensor]) -> dict:
    """TRL's own loss gathers its metrics from all processes, with or without a selection there."""
    rows = sft_rows(48)
    return trained(sft_trainer(SelectingSFT, folder, tiny_llama(), rows, policy=Fixed(masks)))


def draws(folder: str, policy: str) -> dict:
    """The selections of a policy over 12 batches of 4, and the state its rehearsal ends with."""
    events = []
    trainer = selection_trainer(
        folder, tiny_llama(), policy, n=96, on_event=events.append, max_steps=12
    )
    trainer.train()
    selected = [e["selected"] for e in events if e["type"] == "selection"]
    rehearsal = trainer._selection.rehearsal
    state = rehearsal and rehearsal.memory.state_dict()["random"]
    return {"selected": torch.tensor(selected), "rehearsal": state}


def refusal(model, batch) -> str:
    try:
        compute(model, batch, Head(), frozenset({"full_grads"}))
    except ValueError as error:
        return str(error)
    return ""


def sharding(folder: str, **changes):
    args = arguments(folder, **SHARDED, **changes)
    # accelerate shards where there are GPUs, and takes DDP on the CPU.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return args


def sharded(folder: str, masks: list[torch.Tensor]) -> dict:
    policy, args = Keeping(masks), sharding(folder)
    result = train(args, sharded_model(), policy, "last_block")
    # One process has no label in its first batch: both look at the head equally often.
    collate = Blank() if os.environ["RANK"] == "0" else Pad()
    blank = train(sharding(folder, max_steps=2), sharded_model(), "oasis", collate=collate)
    batch = {key: value for key, value in result["seen"][0].items() if key != TASK}
    norm = fully_shard(sharded_model(modules_to_save=["norm"]))
    result["blank"] = blank
    return result | {"signals": policy.signals, "refused": refusal(norm, batch)}


def main(folder: str) -> None:
    rank = int(os.environ["RANK"])
    masks = [torch.tensor(m, dtype=torch.bool) for m in MASKS[rank]]
    args = arguments(folder, ddp_find_unused_parameters=False)
    result = {"ddp": train(args, tiny_llama(), Fixed(masks))}
    again = arguments(folder, ddp_find_unused_parameters=False, gradient_checkpointing=True)
    result["reuse"] = train(again, tiny_llama(), Scored(masks), reuse_forward=True)
    beside, policy = small(), Keeping(masks, frozenset({"gram"}))
    result["beside"] = train(args, tiny_llama(), policy, score_with=beside)
    result["beside"]["signals"] = policy.signals
    result["apart"] = train(
        arguments(folder, max_steps=1, average_tokens_across_devices=False),
        tiny_llama(),
        Fixed(masks),
    )
    result["selector"] = own_selector(folder, rank)
    result["sft"] = with_trl(folder, masks)
    result["fill"] = filled(folder)
    for name in DRAWN:
        result[name] = [draws(folder, name) for _ in range(2)]
    result["fsdp"] = sharded(folder, masks)
    torch.save(result, os.path.join(folder, f"{rank}.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
