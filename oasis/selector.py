"""The selector: scores of a batch in, the samples worth training on out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

import torch
from torch import Tensor, nn

from oasis import ops
from oasis.buffers import state_buffers
from oasis.checks import check_count
from oasis.gram import HeadGram, grad_gram
from oasis.oris import PRESETS, Preset, check_ratio
from oasis.selector_state import Counter, Statistic, saved_state, settings_as_bytes
from oasis.siren import check_gram, check_rule, check_valid

_LARGEST = 1e150


@dataclass(frozen=True)
class Selection:
    """The outcome for a batch of N samples; tensors live on the device of the scores.

    Attributes:
        mask: [N] bool, True for the samples to train on.
        informativeness: [N] float64, squared norm of the last-layer gradient.
        adjusted: [N] float64, informativeness less redundancy (SIREN).
        relative: [N] float64, adjusted in deviations from the running mean (ORIS's z).
        probability: [N] float64, sigmoid((relative - threshold) / temperature). Of the draw "top"
            only their sum, the expected number selected, has a meaning.
        order: [<= N] int64, samples in the order SIREN picked them.
        threshold: 0-d float64, I_T used for this batch.
        siren: redundancy rule used.
        backend: what computed it.
        skipped: [N] bool, samples left out because their scores were not finite.
        weight: [N] float32, factors of the selected samples' losses; None is 1 for each.

    Samples without label tokens (zero gradient) and skipped ones have 0 in every score. Policies
    that do not score have None in the fields from `informativeness` to `siren`.
    """

    mask: Tensor
    informativeness: Tensor | None
    adjusted: Tensor | None
    relative: Tensor | None
    probability: Tensor | None
    order: Tensor | None
    threshold: Tensor | None
    siren: str | None
    backend: str
    skipped: Tensor
    weight: Tensor | None = None

    @property
    def indices(self) -> Tensor:
        """[k] int64, the selected samples, ascending."""
        return self.mask.nonzero().squeeze(1)


class Selector(nn.Module):
    """Selects, batch after batch, about `ratio` of the samples of a stream.

    Holds the running statistics of informativeness, the threshold and its own random generator in
    two buffers: `state_dict` and `load_state_dict` resume a stream exactly, and nothing is drawn
    from torch's generators.

    Args:
        ratio: share of the candidates to select, in (0, 1].
        preset: "calibrated" (default; steers its threshold to the ratio), "paper" (the equations
            to the letter) or "released" (the authors' code).
        seed: of the draws, 0 <= seed < 2^63.
        nonfinite: "raise" (a ValueError names the samples) or "skip" (they are left out).
        **overrides: any field of `oasis.Preset`, e.g. siren="residual", beta=0.5.

    Example:
        >>> selector = Selector(ratio=0.25)
        >>> selection = selector.select(torch.randn(16, 1000))
        >>> selection.mask.shape
        torch.Size([16])
    """

    statistics: Tensor  # float64: mean, variance, within-batch variance, threshold
    counters: Tensor  # int64: batches, candidates, selected, skipped, seed, offset of the draws

    def __init__(
        self,
        ratio: float = 0.25,
        *,
        preset: str | Preset = "calibrated",
        seed: int = 0,
        nonfinite: str = "raise",
        **overrides,
    ):
        super().__init__()
        self.ratio = check_ratio(ratio)
        if isinstance(preset, str):
            if preset not in PRESETS:
                raise ValueError(f"preset: got {preset!r}, expected one of {', '.join(PRESETS)}")
            preset = PRESETS[preset]
        elif not isinstance(preset, Preset):
            got = type(preset).__name__
            raise TypeError(f"preset: got {got}, expected a name or an oasis.Preset")
        known = [f.name for f in fields(Preset)]
        for name in overrides:
            if name not in known:
                raise TypeError(f"{name}: unknown option of Selector, expected {', '.join(known)}")
        self.preset = replace(preset, **overrides)
        check_rule(self.preset.siren, self.preset.ridge, 1, "siren")
        check_count("seed", seed)
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite: got {nonfinite!r}, expected 'raise' or 'skip'")
        self.nonfinite = nonfinite
        statistics = torch.zeros(len(Statistic), dtype=torch.float64)
        statistics[Statistic.threshold] = self.preset.threshold(self.ratio)
        counters = torch.zeros(len(Counter), dtype=torch.int64)
        counters[Counter.seed] = seed
        self.register_buffer("statistics", statistics)
        self.register_buffer("counters", counters)

    def _apply(self, fn, recurse=True):
        # Moves follow the device alone: `.half()` on a model that holds a selector must not round
        # its statistics.
        for name, buffer in list(self._buffers.items()):
            self._buffers[name] = buffer.to(fn(buffer).device)
        return self

    def extra_repr(self) -> str:
        return f"ratio={self.ratio}, nonfinite={self.nonfinite!r}, {self.preset}"

    def _settings(self) -> dict:
        return {"ratio": self.ratio, **asdict(self.preset)}

    def get_extra_state(self) -> Tensor:
        """Ratio and preset."""
        return settings_as_bytes(self._settings())

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing to take over: `_load_from_state_dict` has made sure that it is the same."""

    def load_state_dict(self, state_dict, strict: bool = True, assign: bool = False):
        """As of `torch.nn.Module`, but all or nothing: torch complains when it has copied.

        Raises:
            TypeError, ValueError: naming the entry that is missing, unknown or wrong: of another
                type or shape, with statistics or counters that no stream can have, or of a selector
                with another ratio or preset.
        """
        unknown = set(state_dict) - set(self.state_dict()) if strict else ()
        if unknown:
            raise ValueError(
                f"state: got {', '.join(sorted(unknown))}, expected a selector's alone"
            )
        return super().load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict, prefix, *arguments) -> None:
        saved = saved_state(state_dict, prefix, self._settings())
        super()._load_from_state_dict({**state_dict, **saved}, prefix, *arguments)

    @property
    def mean(self) -> Tensor:
        """0-d float64, running mean of the batches' mean informativeness."""
        return self.statistics[Statistic.mean]

    @property
    def variance(self) -> Tensor:
        """0-d float64, running variance of the batches' mean informativeness."""
        return self.statistics[Statistic.variance]

    @property
    def within(self) -> Tensor:
        """0-d float64, running variance of informativeness about the running mean."""
        return self.statistics[Statistic.within]

    @property
    def threshold(self) -> Tensor:
        """0-d float64, I_T for the next batch."""
        return self.statistics[Statistic.threshold]

    @property
    def batches(self) -> Tensor:
        """0-d int64, batches with at least one scored sample."""
        return self.counters[Counter.batches]

    @property
    def candidates(self) -> Tensor:
        """0-d int64, samples scored (finite, with label tokens)."""
        return self.counters[Counter.candidates]

    @property
    def selected(self) -> Tensor:
        """0-d int64, samples selected."""
        return self.counters[Counter.selected]

    @property
    def skipped(self) -> Tensor:
        """0-d int64, samples that could not be scored (non-finite, or without label tokens)."""
        return self.counters[Counter.skipped]

    @property
    def realised_ratio(self) -> Tensor:
        """0-d float64, selected / candidates so far (0 before the first batch)."""
        return self.selected.double() / self.candidates.clamp(min=1)

    def deviation(self, n: int) -> Tensor:
        """0-d float64, what divides A - mean for a batch of n samples (0 before the first)."""
        scales = {
            "sample": (n * self.variance).sqrt(),
            "batch": self.variance.sqrt(),
            "raw": self.variance,
            "within": self.within.sqrt(),
        }
        return scales[self.preset.scale]

    @torch.no_grad()
    def select(
        self,
        grads: Tensor | Sequence[Tensor] | None = None,
        *,
        gram: Tensor | HeadGram | None = None,
        valid: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> Selection:
        """Select from one batch and advance the state.

        Args:
            grads: [N, ...] per-sample gradients, or a sequence of such tensors, one per parameter
                (see `grad_gram`).
            gram: instead of grads, their Gram matrix [N, N], or the result of `head_gram`.
            valid: [N] bool, samples that may be selected; the others are left out of everything.
            scores: [N] float64 >= 0, another measure of informativeness in place of the squared
                norms; how samples overlap is still told from their gradients' cosines.

        Raises:
            TypeError, ValueError: naming the argument; with nonfinite="raise" also for samples
                whose scores are not finite. The state is then unchanged.
        """
        if (grads is None) == (gram is None):
            raise TypeError("select: expected either grads or gram, got both or neither")
        source = "gram" if grads is None else "grads"
        if grads is not None:
            gram = grad_gram(grads)
        gram = gram.gram if isinstance(gram, HeadGram) else gram
        state_buffers(self.statistics, self.counters, self.statistics.device)
        if isinstance(gram, Tensor) and gram.device != self.statistics.device:
            raise ValueError(
                f"{source}: got device {gram.device}, expected {self.statistics.device} as the "
                "selector's state; move it with selector.to(device)"
            )
        if grads is None:  # ours need no check
            gram = check_gram(gram)
        n = gram.shape[0]
        norms = gram.diagonal()
        measure = norms if scores is None else check_scores(scores, gram)
        step, what = ops.siren_oris_, "gradients"
        if scores is not None:
            step, what = _measured, "gradients or scores"
        scores = measure.clone()
        allowed = torch.ones(n, dtype=torch.bool, device=gram.device)
        if valid is not None:
            check_valid(valid, n)
            allowed = valid.to(gram.device)
        # Beyond the bound the variance of the scores would overflow, and never decay.
        skipped = allowed & ~((scores < _LARGEST) & (norms < _LARGEST))
        if self.nonfinite == "raise" and skipped.any():
            raise ValueError(
                f"{source}: the {what} of samples {skipped.nonzero().squeeze(1).tolist()} are "
                f"not finite (or their squared norm exceeds {_LARGEST:g}); "
                "use nonfinite='skip' to leave such samples out"
            )
        # A zero gradient has nothing to teach (docs/method.md 1.3).
        usable = allowed & ~skipped & (scores > 0) & (norms > 0)
        rule = check_rule(self.preset.siren, self.preset.ridge, int(usable.sum()), "siren")
        gram = torch.where(usable.unsqueeze(0) & usable.unsqueeze(1), gram, 0.0)
        if not torch.isfinite(gram).all():
            raise ValueError("gram: non-finite entries between samples with finite norms")
        scores = torch.where(usable, scores, 0.0)

        threshold = self.threshold.clone()
        p = self.preset
        adjusted, order, relative, probability, mask = step(
            gram,
            scores,
            usable,
            self._floor(scores, usable),
            rule,
            p.ridge,
            self.statistics,
            self.counters,
            p.options(self.ratio),
        )
        return Selection(
            mask=mask,
            informativeness=scores,
            adjusted=adjusted,
            relative=relative,
            probability=probability,
            order=order[order >= 0],
            threshold=threshold,
            siren=rule,
            backend=ops.siren_backend(gram.device.type),
            skipped=skipped,
        )

    def _floor(self, scores: Tensor, usable: Tensor) -> Tensor:
        """The score at which SIREN stops: -inf, but for the preset "released"."""
        if not self.preset.stop:
            return torch.full_like(self.threshold, -torch.inf)
        state = self.statistics, self.counters
        return ops.oris_stop(scores, usable, *state, self.preset.options(self.ratio))


def check_scores(scores: Tensor, gram: Tensor) -> Tensor:
    """`scores` on the device of `gram` [N, N], or an error that names it."""
    if not isinstance(scores, Tensor) or scores.dtype != torch.float64:
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores: got {got}, expected a float64 tensor [{len(gram)}]")
    if scores.shape != (len(gram),):
        raise ValueError(f"scores: got shape {list(scores.shape)}, expected [{len(gram)}]")
    if (scores < 0).any():
        at = int((scores < 0).nonzero()[0])
        raise ValueError(f"scores: got {float(scores[at]):g} at {at}, expected numbers >= 0")
    return scores.detach().to(gram.device)


def _measured(gram, scores, usable, floor, rule, ridge, *rest):
    """`ops.siren_oris_` with scores that are not the diagonal of the Gram matrix."""
    adjusted, order = ops.siren(gram, usable, floor, rule, ridge, scores)
    return adjusted, order, *ops.oris_(scores, adjusted, usable, *rest)


def select(
    grads: Tensor | Sequence[Tensor],
    *,
    ratio: float = 0.25,
    selector: Selector | None = None,
    seed: int = 0,
) -> Selection:
    """Select the samples of one batch worth training on.

    With a `selector`, the batch is judged against everything that selector has seen, and its state
    advances. Without one, the batch is treated as the first of a stream: scores are normalised by
    the batch's own mean and deviation, and nothing is remembered.

    Args:
        grads: [N, ...] per-sample gradients of the last layer, or a sequence of such tensors, one
            per parameter.
        ratio: expected share to select, in (0, 1]; ignored with a `selector`, which has its own.
        selector: the stream's state.
        seed: of the draw; ignored with a `selector`.

    The draw is a function of `seed` alone: in a loop use a `selector`, or another seed each time.

    Raises:
        TypeError, ValueError: naming the argument; also for samples with non-finite gradients.

    Example:
        >>> selection = select(torch.randn(16, 1000), ratio=0.25)
        >>> chosen = selection.indices
    """
    if selector is None:
        selector = Selector(ratio, seed=seed)
        first = grads if isinstance(grads, Tensor) else grads[0] if len(grads) else None
        if isinstance(first, Tensor):
            selector.to(first.device)
    elif not isinstance(selector, Selector):
        raise TypeError(f"selector: got {type(selector).__name__}, expected an oasis.Selector")
    return selector.select(grads)
