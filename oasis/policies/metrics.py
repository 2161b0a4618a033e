"""How informative a sample is: the measures that a policy may rank by (docs/method.md 1)."""

from __future__ import annotations

from torch import Tensor

from .base import Signals, required

# The measure and the signal it is made of.
METRICS = {
    "fisher": "gram",
    "token_fisher": "gram",
    "loss": "loss",
    "perplexity": "loss",
    "entropy": "entropy",
    "el2n": "el2n",
}


def check_metric(metric: str) -> str:
    """`metric`, or a ValueError that says what there is."""
    if metric not in METRICS:
        raise ValueError(f"metric: got {metric!r}, expected one of {', '.join(METRICS)}")
    return metric


def informativeness(signals: Signals, metric: str, policy: str) -> Tensor:
    """[N] float64: "fisher" is the squared norm of the last-layer gradient, "token_fisher" that
    times the label tokens, the others are means over the label tokens ("perplexity" the
    exponential of the mean loss).
    """
    values = required(signals, METRICS[metric], policy)
    if metric == "fisher":
        return values.diagonal().clone()
    if metric == "token_fisher":
        return values.diagonal() * required(signals, "tokens", policy)
    return values.exp() if metric == "perplexity" else values
