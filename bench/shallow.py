"""What cheaper scoring keeps of the scores: `score_depth` (the first blocks alone) by its rank
correlation with full scoring inside a batch, `score_batch_size` (parts of one length, the same
scores) by the positions it runs. On real texts, by the packaged 135 M-parameter model as it comes.

One forward a batch serves all depths: what a block gives goes through the last norm and the head.
The cost of a depth is its share of the blocks; the head is the same for all. Before any training
informativeness scatters by a tenth of its mean (news): there is little to rank.
"""

from __future__ import annotations

import contextlib

import torch

from bench.ranks import agreement
from bench.timing import table
from oasis.lab import model as models
from oasis.lab.data import tasks
from oasis.lab.data.encoding import Collator, encode
from oasis.lab.device import choose_dtype
from oasis.lab.evaluate import pad_id
from oasis.train.batch.columns import TASK
from oasis.train.batch.subbatch import padding, right_padded, take
from oasis.train.frozen.blocks import all_blocks, output_of
from oasis.train.head import Head
from oasis.train.scoring import evaluating, head_scores, model_inputs
from oasis.train.signals.parts import by_length

NAMES = ("bbc", "tweets")
BATCHES, ROWS, WORDS = 2, 16, 36
DEPTHS = (6, 12, 18, 24, 27)  # of 30
SIZES = (16, 8, 4)  # rows of a part


def scores(model, batch: dict) -> dict[int, torch.Tensor]:
    """I [N] by depth, the whole depth among them."""
    states, blocks = {}, all_blocks(model)

    def keep(depth: int):
        def hook(module, args, output) -> None:
            states[depth] = output_of(output)

        return hook

    with contextlib.ExitStack() as hooks, evaluating(model):
        for depth in (*DEPTHS, len(blocks)):
            handle = blocks[depth - 1].register_forward_hook(keep(depth))
            hooks.callback(handle.remove)
        model.model(**model_inputs(model, batch))
        head, norm = model.get_output_embeddings(), model.model.norm
        return {
            depth: head_scores(head, norm(hidden), batch["labels"], Head()).gram.diagonal()
            for depth, hidden in states.items()
        }


def run() -> None:
    device = torch.device("cpu")
    model = models.load_model("smollm2", device, choose_dtype("auto", device))
    tokenizer = models.load_tokenizer("smollm2")
    collate = Collator(pad_id(tokenizer), "right")
    shallow, parts = [], []
    for name in NAMES:
        task = tasks.load(name, train=BATCHES * ROWS, test=ROWS, words=WORDS, seed=0)
        rows = [encode(example, tokenizer, 128) for example in task.train]
        batches = [collate(rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)]
        for batch in batches:
            batch.pop(TASK, None)
        found = [scores(model, right_padded(batch)) for batch in batches]
        shallow += [_row(name, depth, found, len(all_blocks(model))) for depth in DEPTHS]
        for size in SIZES:
            cut = [take(batch, index) for batch in batches for index in by_length(batch, size)]
            positions = sum(part["labels"].numel() for part in cut)
            empty = sum(map(padding, cut))
            whole = sum(batch["labels"].numel() for batch in batches)
            parts.append([name, size, f"{empty / positions:.2f}", f"{positions / whole:.2f}"])
    header = ["texts", "blocks", "share of the blocks", "rank correlation", "top quarter shared"]
    table("score_depth: informativeness by the first blocks, against by all", header, shallow)
    header = ["texts", "score_batch_size", "padding share", "positions, over one forward of all"]
    table("score_batch_size: the same scores from fewer positions", header, parts)


def _row(name: str, depth: int, found: list[dict], total: int) -> list[str]:
    pairs = [(scores[depth], scores[total]) for scores in found]
    rank, shared = agreement(pairs, ROWS // 4)
    means = f"{rank:.2f}", f"{shared:.2f}"
    return [name, f"{depth} of {total}", f"{depth / total:.2f}", *means]
