"""The selector: scores of a batch in, the samples worth training on out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from oasis import operators
from oasis.checks import check_count
from oasis.gram import HeadGram
from oasis.names import COUNTERS, STATISTICS
from oasis.operators.buffers import Selected
from oasis.selection.batch import Batch, Given, usable, validated
from oasis.selection.memory import WIDTH, Sketches
from oasis.selection.presets import PRESETS, Preset
from oasis.selection.redundancy import check_rule, counts, rule_of
from oasis.selection.state import kind_of, saved_state, settings_as_bytes
from oasis.selection.threshold import check_ratio
from oasis.selection.types import Selection


class Selector(nn.Module):
    """Selects, batch after batch, about `ratio` of the samples of a stream.

    Holds the running statistics of informativeness, the threshold, its own random generator and
    what it remembers of selected samples in three buffers: `state_dict` and `load_state_dict`
    resume a stream exactly, and nothing is drawn from torch's generators.

    Args:
        ratio: share of the candidates to select, in (0, 1].
        preset: "calibrated" (default; steers its threshold to the ratio), "paper" (the equations
            to the letter) or "released" (the authors' code).
        seed: of the draws, 0 <= seed < 2^63.
        nonfinite: "raise" (a ValueError names the samples) or "skip" (they are left out).
        checks: of batches on a GPU, whose numbers only the device knows. "deferred": nothing waits
            for it; a batch that would raise selects nothing, counts as skipped, and raises where
            its `indices` or `order` are read, or by `Selection.check`. "now": `select` waits and
            raises. On the CPU errors are always raised at once.
        **overrides: any field of `oasis.Preset`, e.g. siren="residual", beta=0.5, or remember=64:
            candidates are judged by what the 64 samples selected last leave of their gradients.

    Example:
        >>> selector = Selector(ratio=0.25)
        >>> selection = selector.select(torch.randn(16, 1000))
        >>> selection.mask.shape
        torch.Size([16])
    """

    statistics: Tensor  # float64: mean, variance, within-batch variance, threshold
    counters: Tensor  # int64: batches, candidates, selected, skipped, seed, offset of the draws
    memory: Tensor  # [remember, 512] float64: sketches, number n of the stream in row n % remember

    def __init__(
        self,
        ratio: float = 0.25,
        *,
        preset: str | Preset = "calibrated",
        seed: int = 0,
        nonfinite: str = "raise",
        checks: str = "deferred",
        **overrides: Any,
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
        check_rule(self.preset.siren, self.preset.ridge, "siren")
        check_count("seed", seed)
        if nonfinite not in ("raise", "skip"):
            raise ValueError(f"nonfinite: got {nonfinite!r}, expected 'raise' or 'skip'")
        if checks not in ("now", "deferred"):
            raise ValueError(f"checks: got {checks!r}, expected 'now' or 'deferred'")
        self.nonfinite, self.checks = nonfinite, checks
        with torch.inference_mode(False):  # what is made inside can't be written to outside
            statistics = torch.zeros(len(STATISTICS), dtype=torch.float64)
            statistics[STATISTICS["threshold"]] = self.preset.threshold(self.ratio)
            counters = torch.zeros(len(COUNTERS), dtype=torch.int64)
            counters[COUNTERS["seed"]] = seed
            memory = torch.zeros(self.preset.remember, WIDTH, dtype=torch.float64)
        self.register_buffer("statistics", statistics)
        self.register_buffer("counters", counters)
        self.register_buffer("memory", memory)
        self._remembered: str | None = None  # what `memory` is of
        self._packed: tuple[Preset, float, list[float]] | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Selector:
        # Moves follow the device alone: `.half()` on a model that holds a selector must not round
        # its statistics.
        with torch.inference_mode(False):
            for name, buffer in list(self._buffers.items()):
                if buffer is not None:
                    self._buffers[name] = buffer.to(fn(buffer).device)
        return self

    def extra_repr(self) -> str:
        return f"ratio={self.ratio}, nonfinite={self.nonfinite!r}, {self.preset}"

    def _settings(self) -> dict[str, Any]:
        return {"ratio": self.ratio, **asdict(self.preset)}

    def get_extra_state(self) -> Tensor:
        """Ratio and preset, and what is remembered."""
        return settings_as_bytes(self._settings(), self._remembered)

    def set_extra_state(self, state: Tensor) -> None:
        """What is remembered; `_load_from_state_dict` has made sure that the rest is the same."""
        self._remembered = kind_of(state)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
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

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        saved = {**state_dict, **saved_state(state_dict, prefix, self._settings())}
        super()._load_from_state_dict(
            saved, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    @property
    def mean(self) -> Tensor:
        """0-d float64, running mean of the batches' mean informativeness."""
        return self.statistics[STATISTICS["mean"]].clone()

    @property
    def variance(self) -> Tensor:
        """0-d float64, running variance of the batches' mean informativeness."""
        return self.statistics[STATISTICS["variance"]].clone()

    @property
    def within(self) -> Tensor:
        """0-d float64, running variance of informativeness about the running mean."""
        return self.statistics[STATISTICS["within"]].clone()

    @property
    def threshold(self) -> Tensor:
        """0-d float64, I_T for the next batch."""
        return self.statistics.select(0, STATISTICS["threshold"]).clone()

    @property
    def batches(self) -> Tensor:
        """0-d int64, batches with at least one scored sample."""
        return self.counters[COUNTERS["batches"]].clone()

    @property
    def candidates(self) -> Tensor:
        """0-d int64, samples scored (finite, with label tokens)."""
        return self.counters[COUNTERS["candidates"]].clone()

    @property
    def selected(self) -> Tensor:
        """0-d int64, samples selected."""
        return self.counters[COUNTERS["selected"]].clone()

    @property
    def skipped(self) -> Tensor:
        """0-d int64, samples that could not be scored (non-finite, or without label tokens)."""
        return self.counters[COUNTERS["skipped"]].clone()

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
        sketch: Tensor | None = None,
    ) -> Selection:
        """Select from one batch and advance the state.

        Args:
            grads: [N, ...] per-sample gradients, or a sequence of such tensors, one per parameter
                (see `grad_gram`).
            gram: instead of grads, their Gram matrix [N, N], or the result of `head_gram`.
            valid: [N] bool, samples that may be selected; the others are left out of everything.
            scores: [N] float64 >= 0, another measure of informativeness in place of the squared
                norms; how samples overlap still goes by their gradients' cosines.
            sketch: [N, S] floating point, S <= 512, beside a Gram matrix as a tensor: vectors whose
                inner products, up to one factor a sample, are (about) those of the gradients, also
                from batch to batch. A selector that remembers samples needs them; another ignores
                them. Of `grads` it makes them itself, a `HeadGram` must have its own.

        Raises:
            TypeError, ValueError: naming the argument; with nonfinite="raise" also for samples
                whose scores are not finite, and where gradients are of another kind than those
                remembered. The state is then unchanged. On a GPU what is wrong by its numbers is
                raised later, see `checks`.
        """
        device, preset = self.statistics.device, self.preset
        remember = preset.remember > 0
        given = validated(grads, gram, valid, scores, sketch, device, remember)
        waits = device.type != "cpu" and self.checks == "now"
        if not remember and not waits and not counts(preset.siren, given.gram):
            return self._at_once(given)
        batch = usable(given, self.nonfinite, self.checks == "deferred")
        if batch.sketch is None:
            return self._step(batch)
        return self._remembering(batch, batch.sketch)

    def _at_once(self, given: Given) -> Selection:
        """A step by one operator, where nothing has to be known in between."""
        preset, gram, state = self.preset, given.gram, (self.statistics, self.counters)
        rule, raises = rule_of(preset.siren, gram, "siren"), self.nonfinite == "raise"
        how = given.source, raises, rule, preset.ridge, preset.stop, *state, self._options()
        found = Selected(*operators.select_(gram, given.valid, given.scores, *how))
        device = gram.device.type
        return Selection(
            mask=found.mask,
            informativeness=found.informativeness,
            adjusted=found.adjusted,
            relative=found.relative,
            probability=found.probability,
            picks=found.order,
            threshold=found.threshold,
            siren=rule,
            backend=operators.siren_backend(device),
            skipped=found.skipped,
            fault=None if device == "cpu" else found.fault,
        )

    def _remembering(self, batch: Batch, sketch: Sketches) -> Selection:
        """A step on what the remembered samples leave, which remembers those that it selects."""
        if self._remembered not in (None, sketch.kind):
            raise ValueError(
                f"{sketch.source}: got {sketch.kind}, expected {self._remembered}, as the samples "
                "that this selector remembers"
            )
        gram, scaled = operators.remembered(
            batch.gram,
            sketch.rows,
            batch.valid,
            self.memory,
            self.counters,
            self.preset.memory_ridge,
        )
        novel = gram.diagonal().clone()
        if batch.measured:
            share = novel / batch.gram.diagonal()
            novel = torch.where(batch.valid, batch.scores * share, 0.0)
        selection = self._step(replace(batch, gram=gram, scores=novel))
        operators.remember_(scaled, selection.mask, self.counters, self.memory)
        self._remembered = sketch.kind
        return replace(selection, informativeness=batch.scores, novel=novel)

    def _step(self, batch: Batch) -> Selection:
        """SIREN, then ORIS, which advances the state."""
        preset, state = self.preset, (self.statistics, self.counters)
        rule = rule_of(preset.siren, batch.valid, "siren")
        threshold = self.threshold
        measured = batch.scores if batch.measured else None  # not the diagonal of the Gram matrix
        first = batch.gram, batch.valid, self._floor(batch), rule, preset.ridge
        adjusted, picks = operators.siren(*first, measured)
        relative, probability, mask = operators.oris_(
            batch.scores, adjusted, batch.valid, *state, self._options()
        )
        return Selection(
            mask=mask,
            informativeness=batch.scores,
            adjusted=adjusted,
            relative=relative,
            probability=probability,
            picks=picks,
            threshold=threshold,
            siren=rule,
            backend=operators.siren_backend(batch.gram.device.type),
            skipped=batch.skipped,
            fault=batch.fault,
        )

    def _floor(self, batch: Batch) -> Tensor | None:
        """The score at which SIREN stops: none, but for the preset "released"."""
        if not self.preset.stop:
            return None
        state = self.statistics, self.counters
        return operators.oris_stop(batch.scores, batch.valid, *state, self._options())

    def _options(self) -> list[float]:
        """Ratio and preset as the operators take them, packed once."""
        known = self._packed
        if known is None or known[0] is not self.preset or known[1] != self.ratio:
            known = self.preset, self.ratio, self.preset.options(self.ratio)
            self._packed = known
        return known[2]
