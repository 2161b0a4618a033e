"""TRL's trainer for supervised fine-tuning, with and without selection, on rows of a few tokens."""

import datasets
import tiny_text
import torch
from tiny_models import PAD
from tiny_training import Rows
from trl import SFTConfig, SFTTrainer

from oasis.train import SelectionMixin


class SelectingSFT(SelectionMixin, SFTTrainer):
    pass


class SFTInOrder(SFTTrainer):
    """Fed the given batches."""

    batches = ()

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.batches, batch_size=None)


def sft_rows(n=24, **more):
    rows = [
        {"input_ids": row["input_ids"].tolist(), "labels": row["labels"].tolist(), **more}
        for row in Rows(n).items
    ]
    return datasets.Dataset.from_list(rows)


def sft_trainer(cls, path, model, data=None, **changes):
    """`policy` and `on_event` go to the trainer, all else to its arguments."""
    own = {key: changes.pop(key) for key in ("policy", "on_event") if key in changes}
    settings = {
        **{"output_dir": str(path), "per_device_train_batch_size": 4, "max_steps": 3},
        **{"learning_rate": 1e-2, "lr_scheduler_type": "constant", "logging_steps": 1},
        **{"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True},
        **{"bf16": False, "gradient_checkpointing": False, "max_grad_norm": 0.0, **changes},
    }
    tokenizer = tiny_text.tokenizer()
    assert tokenizer.pad_token_id == PAD
    return cls(
        model=model,
        args=SFTConfig(**settings),
        train_dataset=sft_rows() if data is None else data,
        processing_class=tokenizer,
        **own,
    )
