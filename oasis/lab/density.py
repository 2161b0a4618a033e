"""How alike the selected samples are: the mean Gaussian-kernel similarity of their pairs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from oasis.train.batch.subbatch import right_padded
from oasis.train.scoring import evaluating, head_hook, model_inputs
from oasis.train.signals.features import attended, mean_over

BANDWIDTH_SAMPLE = 512  # texts of the stream from which the bandwidth is taken
MOST = 4096  # different samples whose pairs are all looked at; of more, a random choice
MOST_WITHOUT_CACHE = 512  # where each costs a forward of the whole model
BATCH = 32


class FeatureSpace:
    """Features of a stream's examples that no policy has an influence on.

    The mean over a text's positions of the hidden states behind the frozen blocks, where those are
    cached, else of the base model's last hidden states; of length 1. `bandwidth` is the median
    distance between the different ones of a fixed random sample of the stream's texts.

    Args:
        items: Encoded examples ("input_ids") by their number.
        collator: Pads them to a batch.
        model: The language model, LoRA on it switched off where there is any.
        prefix: Its cached frozen blocks, or None.
    """

    def __init__(
        self, items: Sequence[dict], collator, model: nn.Module, prefix: nn.Module | None
    ) -> None:
        self.items, self.collator, self.model, self.prefix = items, collator, model, prefix
        self.most = MOST if prefix is not None else MOST_WITHOUT_CACHE
        self._known: dict[int, Tensor] = {}
        sample = random.Random(0).sample(range(len(items)), min(BANDWIDTH_SAMPLE, len(items)))
        self.bandwidth = median_distance(self[sample])

    def __getitem__(self, numbers: Sequence[int]) -> Tensor:
        """Features [len(numbers), D], float32 on the CPU."""
        missing = sorted(
            {number for number in numbers if number not in self._known},
            key=lambda number: len(self.items[number]["input_ids"]),
        )
        for start in range(0, len(missing), BATCH):
            group = missing[start : start + BATCH]
            batch = right_padded(self.collator([self.items[number] for number in group]))
            self._known.update(zip(group, self._compute(batch), strict=True))
        return torch.stack([self._known[number] for number in numbers])

    def _compute(self, batch: dict[str, Tensor]) -> Iterator[Tensor]:
        device = next(self.model.parameters()).device
        batch = {name: values.to(device) for name, values in batch.items()}
        with evaluating(self.model):
            if self.prefix is not None:
                hidden = self.prefix(batch["input_ids"])
            else:
                seen: list[Tensor] = []

                def capture(_: nn.Module, states: Tensor) -> Tensor:
                    seen.append(states)
                    return states[:, :0]

                off = getattr(self.model, "disable_adapter", nullcontext)
                with off(), head_hook(self.model, capture):
                    self.model(**model_inputs(self.model, batch))
                (hidden,) = seen
        yield from nn.functional.normalize(mean_over(hidden, attended(batch)), dim=1).cpu()

    def density(self, selected: Iterable[int]) -> float | None:
        """Mean similarity exp(-|x - y|^2 / (2 bandwidth^2)) of all pairs of the multiset of
        selected numbers (a sample selected twice is a pair of its own); None for no pair.

        Of more than `most` different numbers a fixed random choice is looked at.
        """
        counts = Counter(selected)
        numbers = sorted(counts)
        if len(numbers) > self.most:
            numbers = random.Random(0).sample(numbers, self.most)
        if sum(counts[number] for number in numbers) < 2:
            return None
        weights = torch.tensor([counts[number] for number in numbers], dtype=torch.float64)
        return mean_similarity(self[numbers], weights, self.bandwidth)


def median_distance(features: Tensor) -> float:
    """Median Euclidean distance of the pairs of different rows of [M, D]; 1 where there is none."""
    distance = torch.pdist(features.double())
    distance = distance[distance > 1e-6]
    return float(distance.median()) if len(distance) else 1.0


def mean_similarity(features: Tensor, counts: Tensor, bandwidth: float) -> float:
    """Mean of exp(-|x_i - x_j|^2 / (2 bandwidth^2)) over the pairs i != j of a multiset, in which
    row i of `features` [M, D] is `counts[i]` times.
    """
    features, counts = features.double(), counts.double()
    total = counts.sum()
    similarity = 0.0
    for start in range(0, len(features), 512):
        squared = torch.cdist(features[start : start + 512], features).square()
        kernel = torch.exp(squared / (-2 * bandwidth**2))
        similarity += float(counts[start : start + 512] @ kernel @ counts)
    return float((similarity - total) / (total * (total - 1)))
