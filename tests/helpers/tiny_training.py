"""Rows, collators, policies and trainers for trainings of a few steps."""

import torch
from tiny_models import PAD, VOCAB
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import TASK


class Rows(Dataset):
    """Random samples of 4 to 12 tokens, the last 1 to 3 of which are labels."""

    def __init__(self, n, seed=1):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            length = int(torch.randint(4, 13, (), generator=g))
            ids = torch.randint(1, VOCAB, (length,), generator=g)
            labels = ids.clone()
            labels[: length - int(torch.randint(1, 4, (), generator=g))] = -100
            self.items.append({"input_ids": ids, "labels": labels, TASK: i % 3})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Pad:
    def __init__(self, side="left", width=14):
        self.side, self.width = side, width

    def __call__(self, items):
        def pad(x, value):
            space = x.new_full((self.width - len(x),), value)
            return torch.cat([space, x] if self.side == "left" else [x, space])

        return {
            "input_ids": torch.stack([pad(i["input_ids"], PAD) for i in items]),
            "attention_mask": torch.stack([pad(torch.ones_like(i["labels"]), 0) for i in items]),
            "labels": torch.stack([pad(i["labels"], -100) for i in items]),
            TASK: torch.tensor([i.get(TASK, 0) for i in items]),
        }


class Fixed:
    """Selects the given masks, one candidate batch after the other."""

    name = "fixed"
    needs = frozenset()

    def __init__(self, masks):
        self.masks, self.at = masks, 0

    def observe(self, signals):
        self.at += 1
        return policies.unscored(self.masks[(self.at - 1) % len(self.masks)])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def arguments(path, **changes):
    return TrainingArguments(
        **{
            "output_dir": str(path),
            "per_device_train_batch_size": 4,
            "max_steps": 3,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **changes,
        }
    )


def selection_trainer(path, model, policy, side="left", n=48, on_event=None, **changes):
    return SelectionTrainer(
        model=model,
        args=arguments(path, **changes),
        train_dataset=Rows(n),
        data_collator=Pad(side),
        policy=policy,
        on_event=on_event,
    )


class InOrder(Trainer):
    """The plain trainer, fed the given batches."""

    def __init__(self, *args, batches, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches = batches

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.batches, batch_size=None)


class KeepGradients(TrainerCallback):
    """Gradients as they are when the optimizer is about to use them."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.steps.append(
            {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        )
