"""head_gram over the matrix products it needs, and over a plain head forward with loss, by T.

Floors: 2 T V D flops for logits and T^2 V for half the Gram of tokens. A plain forward needs the
first alone, but writes T x V logits and reads them again for the loss; head_gram never does. Of
the forward in bfloat16 and widened to float32 (see head_gram.py) the faster counts.
"""

from __future__ import annotations

import torch

from bench.head_gram import inputs, products
from bench.timing import faster, interleaved, median, ratio, table
from oasis import head_gram


def run(width: int = 1024, vocabulary: int = 32000) -> None:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for tokens in (256, 512, 1024, 4096):
            x = inputs(16, tokens // 16, width, vocabulary, dtype)
            hidden, weight, labels, sample, samples = x

            def ours(x=x):
                return head_gram(*x[:4], num_samples=x[4], method="ghost")

            def plain(hidden=hidden, weight=weight, labels=labels):
                logits = (hidden @ weight.T).float()
                return torch.nn.functional.cross_entropy(logits, labels)

            def widened(hidden=hidden, weight=weight, labels=labels):
                logits = hidden.float() @ weight.float().T
                return torch.nn.functional.cross_entropy(logits, labels)

            functions = {"ours": ours, "gemms": lambda x=x: products(*x), "plain": plain}
            times = interleaved({**functions, "widened": widened}, 3)
            rival = faster(times, "plain", "widened")
            rows.append(
                [
                    str(dtype).removeprefix("torch."),
                    tokens,
                    *(median(times[k]) for k in ("ours", "gemms", "plain", "widened")),
                    f"{ratio(times['ours'], times['gemms']):.2f}",
                    f"{ratio(times['ours'], times[rival]) - 1:+.0%}",
                ]
            )
    header = [
        *("type", "T", "head_gram", "bare GEMMs", "head forward + loss", "the same in float32"),
        *("over GEMMs", "over forward + loss"),
    ]
    table(f"head_gram by label tokens, N = 16, D = {width}, V = {vocabulary}", header, rows)
