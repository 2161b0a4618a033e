"""Presets: which reading of the method a Selector takes (docs/method.md 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from oasis.checks import check_count, check_number
from oasis.names import OPTIONS, check_name, pack
from oasis.selection.threshold import check_temperature, threshold


@dataclass(frozen=True)
class Preset:
    """Which reading of the method a Selector takes.

    Attributes:
        siren: redundancy rule, see `oasis.siren`.
        ridge: of the "residual" rule.
        beta: weight of the newest batch in the running statistics, (0, 1].
        scale: deviation in z = (A - mean) / deviation. "sample": sqrt(N v), v the running variance
            of batch means; "batch": sqrt(v); "raw": v; "within": root of the running within-batch
            variance about the running mean.
        draw: "bernoulli" (a uniform per sample), "shared" (one per batch), "systematic" (one offset
            through the cumulated P: the count is within 1 of its expectation), "top" (the same
            count, and of each batch those with the largest z) or "even" (of each batch the share
            that is due, ratio x candidates less what has been selected, by the largest z: batches
            are not compared with each other).
        warmup: candidates of the stream whose batches are normalised by their own mean and
            deviation; the first batch always is.
        recursion: of the running statistics. "equations": from the first batch on, the variance
            about the mean before the batch. "released" (the authors' code): from the batch that
            completes the warm-up on, which starts them at its mean and unbiased variance; then the
            variance about the mean after the batch.
        quantile: threshold by the normal quantile rather than by E[sigmoid(Z - I_T)] = ratio.
        stop: SIREN stops when no z exceeds the threshold; the rest keep their raw scores.
        gain: steering of the threshold towards the budget; 0 = fixed. Needs slack > 0.
        slack: largest share of the budget, ratio x candidates, that may be left unspent, [0, 1).
            Then the stream never selects more than the budget either: of a batch that draws too
            many or too few, those with the largest z - temperature logit(r) are taken. Short
            streams have more slack, see docs/method.md 4.1. 0 = no bounds.
        temperature: of the draw, P = sigmoid((z - threshold) / temperature). 1 is the paper's; the
            smaller, the more surely the largest z are taken.
        remember: how many of the samples selected last are remembered, m; 0 = none. Candidates
            are then judged by what these leave of their gradients (docs/method.md 2.4). Takes
            4 KiB a sample, and O(m^3) time a batch.
        memory_ridge: of what they cover, relative to the batch's mean informativeness, > 0: a
            candidate equal to a remembered gradient keeps about memory_ridge of itself.
    """

    siren: str
    ridge: float
    beta: float
    scale: str
    draw: str
    warmup: int
    recursion: str
    quantile: bool
    stop: bool
    gain: float
    slack: float
    temperature: float
    remember: int = 0
    memory_ridge: float = 0.1

    def __post_init__(self) -> None:
        for name in ("scale", "draw", "recursion"):
            check_name(name, getattr(self, name))
        numbers: dict[str, float] = {
            "beta": check_number("beta", self.beta, 5e-324, 1, "a number in (0, 1]"),
            "warmup": check_count("warmup", self.warmup),
            "remember": check_count("remember", self.remember, bits=31),
            "temperature": check_temperature(self.temperature),
        }
        for name in ("ridge", "gain"):
            value = getattr(self, name)
            numbers[name] = check_number(name, value, 0, math.inf, "a finite number >= 0")
        ridge, positive = self.memory_ridge, "a finite number > 0"
        numbers["memory_ridge"] = check_number("memory_ridge", ridge, 5e-324, math.inf, positive)
        below_one = math.nextafter(1, 0)
        numbers["slack"] = check_number("slack", self.slack, 0, below_one, "a number in [0, 1)")
        for name, value in numbers.items():  # NumPy's, say, would not be saved as JSON
            object.__setattr__(self, name, value)
        if self.gain > 0 and self.slack == 0:
            raise ValueError("slack: got 0, expected more where gain > 0 steers the threshold")
        for name in ("quantile", "stop"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name}: got {type(value).__name__}, expected True or False")

    def threshold(self, ratio: float) -> float:
        """The threshold a stream starts with."""
        if self.quantile and ratio < 1:
            return NormalDist().inv_cdf(1 - ratio)
        return threshold(ratio, self.temperature)

    def options(self, ratio: float) -> list[float]:
        """What the operators of ORIS take after the state (`oasis.names.pack`)."""
        return pack(
            ratio=ratio, **{name: getattr(self, name) for name in OPTIONS if name != "ratio"}
        )


PRESETS = {
    # The paper's equations; docs/method.md 3.1 says which line, where it contradicts itself.
    "paper": Preset(
        siren="exact",
        ridge=0.0,
        beta=0.9,
        scale="sample",
        draw="bernoulli",
        warmup=1,
        recursion="equations",
        quantile=False,
        stop=False,
        gain=0.0,
        slack=0.0,
        temperature=1.0,
    ),
    # The authors' public code, in its order (docs/method.md 3.2).
    "released": Preset(
        siren="exact",
        ridge=0.0,
        beta=0.9,
        scale="batch",
        draw="shared",
        warmup=320,
        recursion="released",
        quantile=True,
        stop=True,
        gain=0.0,
        slack=0.0,
        temperature=1.0,
    ),
    # Ours: a deviation that does not collapse, and a threshold that finds the budget.
    "calibrated": Preset(
        siren="residual",
        ridge=1.0,
        beta=0.9,
        scale="within",
        draw="top",
        warmup=1,
        recursion="equations",
        quantile=False,
        stop=False,
        gain=0.1,
        slack=0.0045,
        temperature=1.0,
    ),
}
