"""A candidate batch on its way to a selection: checked, then without what cannot be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oasis import operators
from oasis.gram import HeadGram, grad_gram
from oasis.operators.candidates import deferred_error
from oasis.selection.checks import check_gram, check_scores, check_valid
from oasis.selection.memory import Sketches, check_sketch, sketches


@dataclass(frozen=True)
class Given:
    """What `Selector.select` was given, of the right types and shapes: see `Batch`."""

    gram: Tensor
    scores: Tensor | None
    valid: Tensor | None
    source: str
    sketch: Sketches | None


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
        fault: on a GPU, 0-d int64: 0, or the code of what is wrong (`operators.candidates`).
    """

    gram: Tensor
    scores: Tensor
    measured: bool
    valid: Tensor
    skipped: Tensor
    source: str
    sketch: Sketches | None
    fault: Tensor | None


def validated(
    grads: Tensor | Sequence[Tensor] | None,
    gram: Tensor | HeadGram | None,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    device: torch.device,
    remember: bool,
) -> Given:
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
    if scores is not None:
        scores = check_scores(scores, matrix)
    if valid is not None:
        check_valid(valid, matrix.shape[0])
        valid = valid.to(matrix.device)
    if sketch is not None:
        if not isinstance(gram, Tensor):
            raise TypeError("sketch: expected only beside gram as a tensor [N, N]")
        sketch = check_sketch("sketch", sketch, matrix)
    kept = sketches(grads, gram, sketch) if remember else None
    return Given(matrix, scores, valid, source, kept)


def _check_device(source: str, gram: Tensor, device: torch.device) -> None:
    if gram.device != device:
        raise ValueError(
            f"{source}: got device {gram.device}, expected {device} as the selector's state; move "
            "it with selector.to(device)"
        )


def usable(given: Given, nonfinite: str, deferred: bool) -> Batch:
    """The batch with zeros where a sample is not valid, or cannot be scored.

    Raises:
        ValueError: on the CPU, or where the error is not `deferred`: numbers that no Gram matrix or
            score has; with nonfinite="raise", naming the samples whose scores are not finite; where
            finite norms have inner products that are not.
    """
    sketch, source = given.sketch, given.source
    rows = None if sketch is None else sketch.rows
    gram, scores, valid, skipped, fault = operators.usable(
        given.gram, given.valid, given.scores, rows, source, nonfinite == "raise"
    )
    on_gpu = gram.device.type != "cpu"
    if on_gpu and not deferred and (code := int(fault)):
        raise deferred_error(code, source)
    measured = given.scores is not None
    deferred_fault = fault if on_gpu else None
    return Batch(gram, scores, measured, valid, skipped, source, sketch, deferred_fault)
