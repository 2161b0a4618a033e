"""A candidate batch on its way to a selection: checked, then without what cannot be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oasis.gram import HeadGram, grad_gram
from oasis.selection.checks import check_gram, check_scores, check_valid
from oasis.selection.memory import Sketches, check_sketch, sketches

_LARGEST = 1e150  # beyond, the variance of the scores would overflow, and never decay


@dataclass(frozen=True)
class Batch:
    """N candidates, on one device.

    Attributes:
        gram: [N, N] float64, inner products of their gradients.
        scores: [N] float64, informativeness: the diagonal of `gram`, or another measure.
        measured: whether it is another measure.
        valid: [N] bool, samples that may be selected.
        skipped: [N] bool, samples left out because their scores are not finite.
        source: the caller's argument, for errors.
        sketch: of a selector that remembers samples, what it remembers of them.
    """

    gram: Tensor
    scores: Tensor
    measured: bool
    valid: Tensor
    skipped: Tensor
    source: str
    sketch: Sketches | None


def validated(
    grads: Tensor | Sequence[Tensor] | None,
    gram: Tensor | HeadGram | None,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    device: torch.device,
    remember: bool,
) -> Batch:
    """What `Selector.select` was given, or a TypeError or ValueError that names the argument."""
    if (grads is None) == (gram is None):
        raise TypeError("select: expected either grads or gram, got both or neither")
    source = "gram" if grads is None else "grads"
    if grads is not None:
        matrix = grad_gram(grads)  # needs no check
        _check_device(source, matrix, device)
    else:
        given = gram.gram if isinstance(gram, HeadGram) else gram
        if isinstance(given, Tensor):
            _check_device(source, given, device)
        matrix = check_gram(given)
    n, measured = matrix.shape[0], scores is not None
    scores = matrix.diagonal() if scores is None else check_scores(scores, matrix)
    if valid is None:
        valid = torch.ones(n, dtype=torch.bool, device=matrix.device)
    else:
        check_valid(valid, n)
        valid = valid.to(matrix.device)
    if sketch is not None:
        if not isinstance(gram, Tensor):
            raise TypeError("sketch: expected only beside gram as a tensor [N, N]")
        sketch = check_sketch("sketch", sketch, matrix)
    nothing, kept = torch.zeros_like(valid), sketches(grads, gram, sketch) if remember else None
    return Batch(matrix, scores.clone(), measured, valid, nothing, source, kept)


def _check_device(source: str, gram: Tensor, device: torch.device) -> None:
    if gram.device != device:
        raise ValueError(
            f"{source}: got device {gram.device}, expected {device} as the selector's state; move "
            "it with selector.to(device)"
        )


def usable(batch: Batch, nonfinite: str) -> Batch:
    """The batch with zeros where a sample is not valid, or cannot be scored.

    Raises:
        ValueError: with nonfinite="raise", naming the samples whose scores are not finite; where
            finite norms have inner products that are not.
    """
    norms, scores = batch.gram.diagonal(), batch.scores
    finite = (scores < _LARGEST) & (norms < _LARGEST)
    if batch.sketch is not None:
        finite &= batch.sketch.rows.isfinite().all(1)
    skipped = batch.valid & ~finite
    if nonfinite == "raise" and skipped.any():
        what = "gradients or scores" if batch.measured else "gradients"
        raise ValueError(
            f"{batch.source}: the {what} of samples {skipped.nonzero().squeeze(1).tolist()} are "
            f"not finite (or their squared norm exceeds {_LARGEST:g}); "
            "use nonfinite='skip' to leave such samples out"
        )
    # A zero gradient has nothing to teach (docs/method.md 1.3).
    valid = batch.valid & ~skipped & (scores > 0) & (norms > 0)
    gram = torch.where(valid.unsqueeze(0) & valid.unsqueeze(1), batch.gram, 0.0)
    if not torch.isfinite(gram).all():
        raise ValueError("gram: non-finite entries between samples with finite norms")
    scores = torch.where(valid, scores, 0.0)
    return replace(batch, gram=gram, scores=scores, valid=valid, skipped=skipped)
