"""Selection in front of TRL's trainer: `python sft_trainer.py MODEL ROWS.jsonl OUT`."""

import sys

import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

from oasis.train import SelectionMixin


class SelectionSFTTrainer(SelectionMixin, SFTTrainer):
    """SFTTrainer on the samples of each batch that a policy selects."""


def train(model_folder, rows_file, out):
    trainer = SelectionSFTTrainer(
        model=model_folder,
        args=SFTConfig(
            out,
            per_device_train_batch_size=8,
            num_train_epochs=1,
            report_to="none",
            bf16=torch.cuda.is_available(),
        ),
        train_dataset=load_dataset("json", data_files=rows_file, split="train"),
        policy="oasis",
        ratio=0.25,
    )
    trainer.train()
    return trainer.selection_counts


if __name__ == "__main__":
    counts = train(*sys.argv[1:])
    print(f"trained on {counts.selected} of {counts.candidates} rows")
