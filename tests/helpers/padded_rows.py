"""A batch of rows of unequal length, padded on either side."""

import torch
from tiny_models import PAD, VOCAB

LENGTHS, LABELS = (9, 5, 12, 7, 3), (3, 1, 2, 0, 2)


def padded(side="left", width=13, seed=0):
    """Five rows, the fourth without a label."""
    g = torch.Generator().manual_seed(seed)
    batch = {
        "input_ids": torch.full((5, width), PAD),
        "attention_mask": torch.zeros(5, width, dtype=torch.int64),
        "labels": torch.full((5, width), -100),
    }
    for row, (length, count) in enumerate(zip(LENGTHS, LABELS, strict=True)):
        first = width - length if side == "left" else 0
        ids = torch.randint(1, VOCAB, (length,), generator=g)
        batch["input_ids"][row, first : first + length] = ids
        batch["attention_mask"][row, first : first + length] = 1
        if count:
            batch["labels"][row, first + length - count : first + length] = ids[-count:]
    return batch


def alone(batch, row):
    """A row without its padding."""
    real = batch["attention_mask"][row].bool()
    return {key: value[row : row + 1, real] for key, value in batch.items()}
