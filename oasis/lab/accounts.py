"""What a finished run cost and how it chose, for its end event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from oasis.lab.arguments import checkpointed
from oasis.lab.config import RunConfig
from oasis.lab.flops import Shape, Way, spent
from oasis.lab.workspace import Workspace
from oasis.names import IGNORED
from oasis.policies import Policy
from oasis.policies.base import validation_rows


def accounts(
    events: Sequence[Mapping],
    workspace: Workspace,
    model: nn.Module,
    policy: Policy,
    config: RunConfig,
    scorer: nn.Module | None = None,
) -> dict[str, Any]:
    """Amounts of a run with the given record; `scorer`: the model that scored, if another.

    `tokens`: label tokens trained on. `score_flops`, `train_flops`: estimates (flops.py). `skew`:
    largest less smallest share selected of a task's candidates. `density` of the selected samples
    and its `bandwidth` (density.py), of packaged tasks. `forgetting`, `backward_transfer`: see
    there; of runs whose tasks all have an accuracy. Where the stream does not number its examples,
    what depends on them is None.
    """
    judged = {name for e in events if e["type"] == "evaluation" for name in e["accuracy"]}
    tasks = workspace.names if judged.issuperset(workspace.names) else []
    matrix = [e["accuracy"] for e in events if e["type"] == "evaluation" and e["after_task"] >= 0]
    selections = [event for event in events if event["type"] == "selection"]
    result: dict[str, Any] = {
        "tokens": sum(event["tokens"] for event in events if event["type"] == "step"),
        "forgetting": forgetting(matrix, tasks),
        "backward_transfer": backward_transfer(matrix, tasks),
        "skew": skew(selections, len(workspace.names)),
    }
    if all(event.get("item") for event in selections):
        met = {number for event in selections for number in event["item"]}
        texts = {number: _amounts(workspace.items[number]) for number in sorted(met)}
        shape = Shape.of(model, workspace.prefix)
        way = Way(
            needs=frozenset(policy.needs),
            validation=validation_rows(policy),
            layer=config.layer,
            depth=config.score_depth,
            scorer=None if scorer is None else Shape.of(scorer),
            checkpointed=checkpointed(config),
            reused=config.reuse_forward,
        )
        scoring, training = spent(selections, texts, shape, way)
        result |= {"score_flops": scoring, "train_flops": training}
        if workspace.digest is None:  # a matter of research: further forwards of all texts
            space = workspace.feature_space(model)
            result["density"] = space.density(selected_items(selections))
            result["bandwidth"] = space.bandwidth
    return result


def _amounts(item: Mapping[str, Any]) -> tuple[int, int, bytes]:
    ids, labels = item["input_ids"], item["labels"]
    return len(ids), sum(label != IGNORED for label in labels), repr(ids).encode()


def selected_items(selections: Iterable[Mapping]) -> list[int]:
    """Numbers of the selected examples, as often as each was selected."""
    return [
        item
        for event in selections
        for item, kept in zip(event["item"], event["selected"], strict=True)
        if kept
    ]


def skew(selections: Iterable[Mapping], tasks: int) -> float | None:
    """Largest less smallest, over the tasks, share of a task's candidates that was selected."""
    chosen, met = Counter(), Counter()
    for event in selections:
        left = event.get("unscored", ())
        for place, task in enumerate(event["task"] or ()):
            met[task] += place not in left
            chosen[task] += event["selected"][place]
    shares = [chosen[task] / met[task] for task in range(tasks) if met[task]]
    return max(shares) - min(shares) if shares else None


def forgetting(matrix: Sequence[Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    """Mean over all tasks but the last of the best accuracy at an earlier boundary (from the task's
    own on) less that at the end; None for a single task. `matrix[k]`: accuracies after task k.
    """
    lost = [
        max(row[task] for row in matrix[k:-1]) - matrix[-1][task]
        for k, task in enumerate(tasks[:-1])
    ]
    return sum(lost) / len(lost) if lost else None


def backward_transfer(matrix: Sequence[Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    """Mean over all tasks but the last of the accuracy at the end less that after the task itself;
    None for a single task.
    """
    gained = [matrix[-1][task] - matrix[k][task] for k, task in enumerate(tasks[:-1])]
    return sum(gained) / len(gained) if gained else None
