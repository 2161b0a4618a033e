"""What a run's accuracies come to: A_last, A_avg and the standard error of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def a_last(history: Sequence[Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    """Mean accuracy over all tasks at the last boundary (docs/method.md, 6); over those that have
    one, where some are judged by their loss alone, None where all are.
    """
    values = [history[-1][task] for task in tasks if task in history[-1]]
    return sum(values) / len(values) if values else None


def a_avg(history: Sequence[Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    """Mean over the task boundaries of the mean accuracy over the tasks seen so far; of boundaries
    and tasks that have one, None where none has.

    `history[k]` maps task names to the accuracy at the end of task k and must have tasks 0..k.
    """
    if len(history) != len(tasks):
        raise ValueError(f"history: got {len(history)} boundaries, expected {len(tasks)}")
    means = [a_last([accuracy], tasks[: k + 1]) for k, accuracy in enumerate(history)]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known else None


def standard_error(accuracy: Mapping[str, float], held_out: Mapping[str, int]) -> float:
    """Binomial standard error of the mean accuracy over tasks: sqrt(sum_k p_k (1 - p_k) / n_k) / K,
    with p_k the accuracy of task k on its n_k held-out examples.
    """
    variance = sum(p * (1 - p) / held_out[name] for name, p in accuracy.items())
    return variance**0.5 / len(accuracy)
