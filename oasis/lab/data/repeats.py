"""Near-duplicates, which real streams are full of: the same text again, whole or cut shorter."""

from __future__ import annotations

import random
from collections.abc import Sequence

from oasis.lab.data.tasks import Example


def with_repeats(examples: Sequence[Example], count: int, seed: int | str = 0) -> list[Example]:
    """`examples` and `count` near-duplicates of them, in that order.

    Each is of an example drawn uniformly; every second one is verbatim, the others keep the first
    50 to 90 % of the words above the prompt's last line (which asks the question).
    """
    if count < 0 or (count and not examples):
        raise ValueError(f"count: got {count} repeats of {len(examples)} examples")
    generator = random.Random(seed)
    repeats = []
    for index in range(count):
        example = generator.choice(examples)
        if index % 2:
            text, newline, question = example.prompt.rpartition("\n")
            words = text.split(" ")
            kept = max(2, round(len(words) * generator.uniform(0.5, 0.9)))
            example = Example(" ".join(words[:kept]) + newline + question, example.answer)
        repeats.append(example)
    return [*examples, *repeats]
