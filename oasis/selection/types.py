"""What a selection is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oasis.operators.candidates import deferred_error


@dataclass(frozen=True)
class Selection:
    """The outcome for a batch of N samples; tensors live on the device of the scores.

    Attributes:
        mask: [N] bool, True for the samples to train on.
        informativeness: [N] float64, squared norm of the last-layer gradient.
        adjusted: [N] float64, informativeness less redundancy (SIREN); `novel` less redundancy
            where samples are remembered.
        relative: [N] float64, adjusted in deviations from the running mean (ORIS's z).
        probability: [N] float64, sigmoid((relative - threshold) / temperature). Of the draw "top"
            only their sum, the expected number selected, has a meaning.
        picks: [N] int64, samples in the order SIREN picked them, then -1.
        threshold: 0-d float64, I_T used for this batch.
        siren: redundancy rule used.
        backend: what computed it.
        skipped: [N] bool, samples left out because their scores were not finite.
        weight: [N] float32, factors of the selected samples' losses; None is 1 for each.
        novel: [N] float64, informativeness less what the samples selected last cover of it; None
            where none are remembered.

        fault: of a batch on a GPU, 0-d int64: 0, or the code of what is wrong with it (`check`).

    Samples without label tokens (zero gradient) and skipped ones have 0 in every score. Policies
    that do not score have None in the fields from `informativeness` to `siren`.
    """

    mask: Tensor
    informativeness: Tensor | None
    adjusted: Tensor | None
    relative: Tensor | None
    probability: Tensor | None
    picks: Tensor | None
    threshold: Tensor | None
    siren: str | None
    backend: str
    skipped: Tensor
    weight: Tensor | None = None
    novel: Tensor | None = None
    fault: Tensor | None = None

    @property
    def indices(self) -> Tensor:
        """[k] int64, the selected samples, ascending. Raises as `check` does."""
        self.check()
        return self.mask.nonzero().squeeze(1)

    @property
    def order(self) -> Tensor | None:
        """[<= N] int64, samples in the order SIREN picked them. Raises as `check` does."""
        self.check()
        return None if self.picks is None else self.picks[self.picks >= 0]

    def check(self) -> None:
        """Raise the ValueError that `select` could not without waiting for the GPU; the batch was
        then left out: nothing is selected of it, and its samples are counted as skipped."""
        if self.fault is not None and (code := int(self.fault)):
            raise deferred_error(code, "gram or grads")
