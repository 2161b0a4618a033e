"""Task difficulty and instance influence, from gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from oasis import Selection
from oasis.checks import check_count, check_number

from .base import Budget, Signals, outcome, register
from .kmeans import RunningKMeans
from .pool import Pool
from .quotas import RunningQuotas
from .resumable import Resumable
from .valid import finite_rows


class Tive(Resumable):
    """Rule: more from tasks with large gradients; inside, samples whose gradient the task shares.

    Source: Liu et al. 2024, "Less is more: high-value data selection for visual instruction
    tuning" (TIVE). Original: with the gradients of a model warmed up on a small part, an instance's
    influence is the mean cosine of its gradient with the others of its task, a task's difficulty
    the mean norm of its gradients; tasks get shares by difficulty, and instances of a task are
    sampled with weights softmax(influence / temperature); the temperature of the authors' code is
    1/q with q = 0.001, so that the weights inside a task differ by two thousandths at most.

    Here: sketches of the LoRA gradients of the model as it trains; means over the latest `pool`
    candidates of the task; the sampling, without replacement, by Gumbel-top-k; shares proportional
    to difficulty, by running credits (see `RunningQuotas`). Where the stream tells its tasks they
    are used, as in the original (rows of no task together as one more); elsewhere pseudo-tasks
    are, clusters by running spherical k-means of the gradients.

    Differences: the model is not warmed up before, it is the one that trains.

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: of the clustering and the sampling.
        tasks: whether to look at the tasks that the stream tells.
        clusters, warmup: of the pseudo-tasks, see `RunningKMeans`.
        temperature: of the sampling, >= 0; default that of the authors' code. 0 takes the most
            influential.
        pool: candidates kept to stand for the data set.
    """

    name = "tive"
    gives_scores = False
    needs = frozenset({"full_grads"})
    parts = ("kmeans", "quotas", "pool", "generator")

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        tasks: bool = True,
        clusters: int = 16,
        warmup: int | None = None,
        temperature: float = 1000.0,
        pool: int = 256,
    ):
        self.budget = Budget(ratio)
        if not isinstance(tasks, bool):
            raise TypeError(f"tasks: got {tasks!r}, expected True or False")
        self.tasks = tasks
        self.kmeans = RunningKMeans(clusters, warmup, seed, spherical=True)
        self.quotas = RunningQuotas()
        self.temperature = check_number(
            "temperature", temperature, 0, float("inf"), "a finite number >= 0"
        )
        self.pool = Pool(check_count("pool", pool, 1))
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, signals: Signals) -> Selection:
        rows, skipped, (grads,) = finite_rows(self.name, signals, "full_grads")
        count, n = self.budget.take(len(rows)), len(rows)
        if n == 0:
            return outcome(signals, rows, skipped)
        norms = grads.double().norm(dim=1)
        directions = F.normalize(grads.float(), dim=1)
        known = signals.task if self.tasks else None
        task = torch.full((n,), -1) if known is None else known.cpu()[rows]
        self.pool.add(directions=directions, norms=norms, task=task)
        if known is not None:
            label = self.pool["task"] + 1  # rows of no task, -1, are a group of their own
        else:
            self.kmeans.update(directions)
            label = self.kmeans.assign(self.pool["directions"])[0]
        difficulty, influence = self._values(label, n)
        label = label[-n:]
        noise = -torch.empty(n, dtype=torch.float64).exponential_(generator=self.generator).log()
        keys = influence + self.temperature * noise
        counts = self.quotas.split(count, difficulty, label.bincount(minlength=len(difficulty)))
        chosen: list[int] = []
        for group, slots in enumerate(counts):
            members = (label == group).nonzero().flatten()
            order = keys[members].argsort(descending=True, stable=True)
            chosen += members[order[:slots]].tolist()
        return outcome(signals, rows[chosen], skipped)

    def _values(self, label: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Mean norm [K] of each task's gradients, and mean cosine [n] of each of the last n
        gradients with the others of its task; 0 where there are no others.
        """
        directions = self.pool["directions"].double()
        member = F.one_hot(label).double()
        size = member.sum(dim=0)
        difficulty = (self.pool["norms"] @ member) / size.clamp(min=1)
        if difficulty.sum() == 0:
            difficulty = (size > 0).double()  # gradients that have all vanished
        own = directions[-n:]
        sums = (member.T @ directions)[label[-n:]]
        others = (own * (sums - own)).sum(dim=1)
        return difficulty, others / (size[label[-n:]] - 1).clamp(min=1)


register("tive", Tive)
