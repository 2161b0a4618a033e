"""What choosing costs in training: the scoring forward of a batch of 16 real texts over a plain
forward with loss of the same batch, on the packaged 135 M-parameter model.

Floor: both run the same 30 blocks (2 x 106 M flops a token). The plain forward adds logits at
every position (2 x 28 M flops a token, and V numbers written); scoring adds them at the label
positions alone, and the Gram of those few tokens. In texts that are learnt as a whole every
position is a label: then both add the same logits, and scoring the Gram of all tokens; of a policy
that asks for metrics alone, not even that.

A model in bfloat16 runs on a CPU's own bfloat16 instructions, where it has some, and head_gram in
float32, unless torch is told otherwise (`torch.set_float32_matmul_precision`, `precision` here).
"""

from __future__ import annotations

import torch

from bench.timing import interleaved, ratio, show, table
from oasis import Selector
from oasis.lab import model as models
from oasis.lab.data import tasks
from oasis.lab.data.encoding import Collator, encode
from oasis.lab.device import choose_dtype
from oasis.lab.evaluate import pad_id
from oasis.names import IGNORED
from oasis.train.batch.columns import TASK
from oasis.train.scoring import inspect_head, score
from oasis.train.signals.compute import compute


def run(
    samples: int = 16,
    rounds: int = 9,
    names: tuple[str, ...] = ("bbc", "tweets"),
    dtype: str = "auto",
    precision: str = "highest",
) -> None:
    device, kind = torch.device("cpu"), choose_dtype(dtype, torch.device("cpu"))
    torch.set_float32_matmul_precision(precision)
    model = models.load_model("smollm2", device, kind)
    tokenizer = models.load_tokenizer("smollm2")
    rows = []
    for name, whole in ((name, whole) for name in names for whole in (False, True)):
        task = tasks.load(name, train=samples, test=samples, words=36, seed=0)
        collate = Collator(pad_id(tokenizer), "left")
        batch = collate([encode(example, tokenizer, 128) for example in task.train])
        batch.pop(TASK, None)
        if whole:
            batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
        head = inspect_head(model, batch)
        selector = Selector(0.25)

        def forward(batch=batch):
            with torch.no_grad():
                return model(**batch).loss

        def scoring(batch=batch, head=head):
            return score(model, batch, head)

        def metrics(batch=batch, head=head):
            return compute(model, batch, head, frozenset({"loss"}))

        known = scoring()

        def selecting(known=known, selector=selector):
            return selector.select(gram=known)

        timed = {"forward": forward, "scoring": scoring, "metrics": metrics, "select": selecting}
        times = interleaved(timed, rounds)
        rows.append(
            [
                f"{name}, {samples} x {batch['input_ids'].shape[1]} tokens",
                int(known.tokens.sum()),
                *(show(min(times[k])) for k in ("scoring", "metrics", "forward", "select")),
                *(f"{ratio(times[k], times['forward']):.2f}" for k in ("scoring", "metrics")),
            ]
        )
    header = [
        "batch",
        "labels",
        "scoring forward",
        "metrics alone",
        "forward with loss",
        "select",
        "scoring / forward",
        "metrics / forward",
    ]
    of = f"SmolLM2-135M ({str(kind).removeprefix('torch.')}) on real texts"
    table(f"Cost of choosing, {of}, float32 products {precision}", header, rows)
