"""What a run's accuracies come to: A_last, A_avg and the standard error of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def mean(accuracy: Mapping[str, float], tasks: Sequence[str]) -> float | None:
    """Mean accuracy over those of `tasks` that have one (free text may have a loss alone); None
    where none has.
    """
    values = [accuracy[task] for task in tasks if task in accuracy]
    return sum(values) / len(values) if values else None


def accuracy_of(
    answers: Mapping[str, Sequence[int]], average: str, frequency: Mapping[str, int] | None = None
) -> float:
    """Accuracy of a task of which `answers` has, for each answer, (right, all) held-out examples.

    "macro": the mean over the answers of the share that is right. "micro": the share of all
    examples; with a `frequency` of the answers where held-out examples were chosen to be balanced,
    the mean weighted by it, which is the share among examples as frequent as those.
    """
    if average not in ("micro", "macro"):
        raise ValueError(f"average: got {average!r}, expected 'micro' or 'macro'")
    shares = {answer: right / of for answer, (right, of) in answers.items()}
    if average == "macro":
        return sum(shares.values()) / len(shares)
    weights = {answer: (frequency or {}).get(answer, 0) for answer in shares}
    total = sum(weights.values())
    if total:
        return sum(weights[answer] * share for answer, share in shares.items()) / total
    return sum(right for right, _ in answers.values()) / sum(of for _, of in answers.values())


def a_last(history: Sequence[Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    """Mean accuracy over all tasks at the last boundary (docs/method.md, 6)."""
    return mean(history[-1], tasks)


def a_avg(history: Sequence[Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    """Mean over the task boundaries of the mean accuracy over the tasks seen so far, where there is
    one.

    `history[k]` maps task names to the accuracy at the end of task k.
    """
    if len(history) != len(tasks):
        raise ValueError(f"history: got {len(history)} boundaries, expected {len(tasks)}")
    means = [mean(accuracy, tasks[: k + 1]) for k, accuracy in enumerate(history)]
    known = [value for value in means if value is not None]
    return sum(known) / len(known) if known else None


def standard_error(accuracy: Mapping[str, float], held_out: Mapping[str, int]) -> float:
    """Binomial standard error of the mean accuracy over tasks: sqrt(sum_k p_k (1 - p_k) / n_k) / K,
    with p_k the accuracy of task k on its n_k held-out examples.
    """
    variance = sum(p * (1 - p) / held_out[name] for name, p in accuracy.items())
    return variance**0.5 / len(accuracy)
