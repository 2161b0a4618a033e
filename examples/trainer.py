"""`SelectionTrainer` with LoRA: `python trainer.py MODEL ROWS.jsonl OUT`."""

import sys

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from oasis.lab.data.encoding import Collator
from oasis.lab.data.own.load import load
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.evaluate import pad_id
from oasis.train import SelectionTrainer


def train(model_folder, rows_file, out):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    (task,) = load(DataSettings(path=[rows_file]), tokenizer, max_length=512).tasks
    trainer = SelectionTrainer(
        model=get_peft_model(model, LoraConfig(target_modules="all-linear")),
        args=TrainingArguments(
            out, per_device_train_batch_size=8, num_train_epochs=1, report_to="none"
        ),
        train_dataset=task.train,
        data_collator=Collator(pad_id(tokenizer)),
        policy="oasis",
        ratio=0.25,
    )
    trainer.train()
    return trainer.selection_counts


if __name__ == "__main__":
    counts = train(*sys.argv[1:])
    print(f"trained on {counts.selected} of {counts.candidates} rows")
