"""The protocol every selection method follows, and the registry that creates them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from oasis import Selection
from oasis.selection.threshold import check_ratio

SIGNALS = frozenset(
    {
        "gram",
        "sketch",
        "loss",
        "entropy",
        "el2n",
        "features",
        "features_multi",
        "full_grads",
        "middle_grads",
        "image_text_score",
        "validation",
    }
)


@dataclass
class Signals:
    """What is known of one candidate batch of N samples when a policy is asked to choose.

    A field is None unless the policy `needs` it; `tokens` and `answer` come for free and are always
    given by the trainer, and so is `task` where the stream tells it.

    Attributes:
        num_samples: N.
        gram: [N, N], inner products of last-layer gradients (docs/method.md 1).
        sketch: [N, 512] float64, sketches of the same gradients: inner products, with samples of
            other batches too, are kept in expectation.
        loss, entropy, el2n: [N], token means.
        tokens: [N] int64, label tokens.
        features: [N, D] float32, what enters the output head, mean over the attended positions.
        features_multi: [N, 5, D] float32, the same after five evenly spaced blocks.
        full_grads, middle_grads: [N, 8192] float32, gradient of the sample's mean loss with respect
            to the trained weights of the model, or of its middle trained block: a count sketch that
            keeps inner products in expectation.
        image_text_score: [N] float32, cosine of image and text features; NaN for a sample without
            an image, None where no sample has one.
        validation_gram: [N, M] float64, inner products of the last-layer gradients with those of M
            rows of earlier batches; comes with the need "validation". None as long as there are
            none.
        task: [N] int64, index of the task that a sample belongs to; -1 for none.
        answer: [N] int64, a number of the sample's label tokens: the same for the same answer.
    """

    num_samples: int
    gram: Tensor | None = None
    sketch: Tensor | None = None
    loss: Tensor | None = None
    entropy: Tensor | None = None
    el2n: Tensor | None = None
    tokens: Tensor | None = None
    features: Tensor | None = None
    features_multi: Tensor | None = None
    full_grads: Tensor | None = None
    middle_grads: Tensor | None = None
    image_text_score: Tensor | None = None
    validation_gram: Tensor | None = None
    task: Tensor | None = None
    answer: Tensor | None = None


@runtime_checkable
class Policy(Protocol):
    """A selection method. `needs` (a subset of `SIGNALS`) is what must be computed for it; empty
    means that no scoring forward is run. A policy may also have `statistics() -> dict[str, float]`
    with any of "threshold", "mean", "deviation", which the trainer then logs. One that needs
    "validation" may say how many rows of earlier batches: an int `validation`, default 8. One whose
    `total_batches` is None is given the number of candidate batches when a training begins. One
    that ranks no candidates in its selections has `gives_scores = False`.
    """

    name: str
    needs: frozenset[str]

    def observe(self, signals: Signals) -> Selection: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Scheduled(Policy, Protocol):
    """A policy that goes by the number of candidate batches of a training."""

    total_batches: int | None


def wants_length(policy: Policy) -> TypeGuard[Scheduled]:
    """Whether a policy waits for the number of candidate batches: its `total_batches` is None."""
    return getattr(policy, "total_batches", 0) is None


def validation_rows(policy: Policy) -> int:
    """How many rows of earlier batches are scored beside each batch for `policy`."""
    return getattr(policy, "validation", 8) if "validation" in policy.needs else 0


class Budget:
    """floor(ratio * candidates) over the whole stream, exactly: what the next batch may take.

    `ratio` in (0, 1] is read as the nearest fraction with a denominator up to a million, so that
    0.29 of 100 is 29 although 0.29 * 100 < 29 in binary floating point.
    """

    def __init__(self, ratio: float):
        self.ratio = Fraction(check_ratio(ratio)).limit_denominator(1_000_000)
        self.candidates = 0
        self.selected = 0

    def take(self, eligible: int, ratio: Fraction | None = None) -> int:
        """Account for `eligible` more candidates and return how many of them are to be kept.

        With a `ratio` below the budget's own the running total is brought to that share only.
        """
        ratio = self.ratio if ratio is None else min(ratio, self.ratio)
        self.candidates += eligible
        total = self.candidates * ratio.numerator // ratio.denominator
        count = max(0, min(eligible, total - self.selected))
        self.selected += count
        return count

    def state_dict(self) -> dict[str, float]:
        counts = {"candidates": self.candidates, "selected": self.selected}
        return {"ratio": float(self.ratio), **counts}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from `state`. ValueError where it was saved with another ratio."""
        # The counts of one ratio would make another stop, or rush, until it has caught up.
        if state["ratio"] != float(self.ratio):
            raise ValueError(
                f"state: saved with ratio={state['ratio']!r}, expected {float(self.ratio)!r} as in "
                "this policy"
            )
        self.candidates, self.selected = int(state["candidates"]), int(state["selected"])


def eligible(signals: Signals) -> Tensor:
    """Indices [<= N] of the samples that may be chosen: those with a label token, where known."""
    if signals.tokens is None:
        return torch.arange(signals.num_samples)
    return signals.tokens.cpu().nonzero().flatten()


def required(
    signals: Signals, name: str, policy: str, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The signal called `name` on the CPU, as `dtype`.

    Raises ValueError where it is missing or its dimension 0 is not the samples.
    """
    value: Tensor | None = getattr(signals, name)
    if value is None:
        raise ValueError(f"signals.{name}: got None, the policy {policy!r} needs it")
    n = signals.num_samples
    if value.shape[:1] != (n,) or (name == "gram" and value.shape != (n, n)):
        expected = f"[{n}, {n}]" if name == "gram" else f"[{n}, ...]"
        raise ValueError(f"signals.{name}: got shape {list(value.shape)}, expected {expected}")
    return value.detach().to("cpu", dtype)


def candidates(signals: Signals, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Eligible samples with finite scores [N]: their indices, and the mask [N] of the eligible
    ones that are not (they are skipped: no budget, no place in any running state).
    """
    indices = eligible(signals)
    finite = scores[indices].isfinite()
    skipped = torch.zeros(signals.num_samples, dtype=torch.bool)
    skipped[indices[~finite]] = True
    return indices[finite], skipped


def gram_candidates(signals: Signals, policy: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gram matrix [n, n] of the n samples that may be chosen, and what `candidates` returns."""
    gram = required(signals, "gram", policy)
    indices, skipped = candidates(signals, gram.diagonal())
    block = gram[indices][:, indices]
    if not block.isfinite().all():
        raise ValueError("signals.gram: non-finite entries between samples with finite norms")
    if (block.diagonal() < 0).any():
        raise ValueError("signals.gram: negative diagonal, expected squared norms")
    return block, indices, skipped


def outcome(
    signals: Signals,
    picks: Tensor,
    skipped: Tensor,
    *,
    scores: Tensor | None = None,
    weight: Tensor | None = None,
) -> Selection:
    """The outcome of a policy that chose the samples `picks` [k] in this order.

    `scores` [N] become the informativeness (0 where skipped or without label tokens); `weight`
    [k] are the loss weights of the picks, in their order.
    """
    mask = torch.zeros(signals.num_samples, dtype=torch.bool)
    mask[picks] = True
    if scores is not None:
        judged = ~skipped
        if signals.tokens is not None:
            judged &= signals.tokens.cpu() > 0
        scores = torch.where(judged, scores, 0.0)
    weights = None
    if weight is not None:
        weights = torch.zeros(signals.num_samples)
        weights[picks] = weight.float()
    return replace(
        unscored(mask), picks=picks, skipped=skipped, informativeness=scores, weight=weights
    )


def unscored(mask: Tensor) -> Selection:
    """The outcome [N] of a policy that scores nothing: every score is None."""
    return Selection(
        mask=mask,
        informativeness=None,
        adjusted=None,
        relative=None,
        probability=None,
        picks=mask.nonzero().squeeze(1),
        threshold=None,
        siren="none",
        backend="torch",
        skipped=torch.zeros_like(mask),
    )


_FACTORIES: dict[str, Callable[..., Policy]] = {}


def register(name: str, factory: Callable[..., Policy]) -> None:
    """Make `create(name)` call `factory(ratio=..., seed=..., **options)`.

    Raises ValueError when the name is taken by another factory.
    """
    if not callable(factory):
        raise TypeError(f"factory: got {type(factory).__name__}, expected a callable")
    if _FACTORIES.get(name, factory) is not factory:
        raise ValueError(f"name: a policy called {name!r} is registered already")
    _FACTORIES[name] = factory


def names() -> list[str]:
    """The registered policies, sorted."""
    return sorted(_FACTORIES)


def create(name: str, ratio: float = 0.25, seed: int = 0, **options: Any) -> Policy:
    """Build a policy by name.

    Args:
        name: one of `names()`.
        ratio: fraction of the candidates to train on, in (0, 1]. `full` ignores it.
        seed: seed of the policy's own generator.
        options: passed on to the policy.

    Raises:
        ValueError: unknown name, or a ratio out of range.
        TypeError: an option that the policy does not have.
    """
    if name not in _FACTORIES:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(names())}")
    known = inspect.signature(_FACTORIES[name]).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        own = [option for option in known if option not in ("ratio", "seed")]
        for option in options:
            if option not in own:
                raise TypeError(
                    f"{option}: unknown option of {name!r}, expected "
                    f"{', '.join(own) or 'none: it has no options'}"
                )
    return _FACTORIES[name](ratio=ratio, seed=seed, **options)
