"""One of two processes of a run that test_trainer.py starts: python ddp_worker.py FOLDER."""

import os
import sys

import torch
from test_trainer import Fixed, selection_trainer
from tiny_models import tiny_llama

MASKS = (
    ((1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 0)),
    ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1)),
)


def main(folder: str) -> None:
    rank = int(os.environ["RANK"])
    masks = [torch.tensor(m, dtype=torch.bool) for m in MASKS[rank]]
    model = tiny_llama()
    trainer = selection_trainer(
        folder, model, Fixed(masks), max_steps=3, ddp_find_unused_parameters=False
    )
    seen, select = [], trainer._select
    trainer._select = lambda batch: seen.append(batch) or select(batch)
    trainer.train()
    parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    logs = [r["loss"] for r in trainer.state.log_history if "loss" in r]
    torch.save((seen, parameters, logs), os.path.join(folder, f"{rank}.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
