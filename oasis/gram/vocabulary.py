"""Vocabulary-parallel `head_gram`: puts together the parts of a head that several devices hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oasis import operators
from oasis.checks import check_buffer
from oasis.gram.types import HeadGram, HeadGramPartial, gathered


def merge(partials: Sequence[HeadGramPartial]) -> HeadGram:
    """The HeadGram of the whole vocabulary from `head_gram(..., vocab_range=)` of its parts.

    Equal to one call over the whole head up to rounding, however confident the tokens. Tensors of
    parts from other devices must have been copied to one.

    Args:
        partials: parts that cover [0, V) without gap or overlap, in any order, of the same tokens.

    Raises:
        TypeError, ValueError: not parts; ranges that leave a gap or overlap; parts of different
            tokens or options; a label beyond the last range.
    """
    parts = list(partials)
    if not parts or not all(isinstance(p, HeadGramPartial) for p in parts):
        got = ", ".join(type(p).__name__ for p in parts) or "none"
        raise TypeError(f"partials: got {got}, expected results of head_gram(..., vocab_range=)")
    parts.sort(key=lambda p: p.vocab_range)
    ranges = [p.vocab_range for p in parts]
    if ranges[0][0] != 0 or any(a[1] != b[0] for a, b in zip(ranges, ranges[1:], strict=False)):
        raise ValueError(f"partials: got ranges {ranges}, expected [0, V) without gap or overlap")
    one = parts[0]
    for p in parts:
        for name in ("labels", "tokens"):  # they are compared before the operator sees them
            tensor = getattr(p, name)
            check_buffer(f"partials: {name}", tensor, torch.int64, None, tensor.device)
    for p in parts[1:]:
        options = [_options(x) for x in (one, p)]
        if options[0] != options[1]:
            raise ValueError(f"partials: got {options[1]} beside {options[0]}, expected equal ones")
        if p.labels.device != one.labels.device:
            devices = f"got device {p.labels.device}, expected {one.labels.device}"
            raise ValueError(f"partials: {devices}")
        if not torch.equal(p.labels, one.labels) or not torch.equal(p.tokens, one.tokens):
            raise ValueError(f"partials: range {p.vocab_range} has other labels or samples")
    if one.labels.numel() and int(one.labels.max()) >= ranges[-1][1]:
        raise ValueError(
            f"partials: label {int(one.labels.max())} lies beyond the ranges' end {ranges[-1][1]}"
        )
    lists = ("products", "gathers", "token", "deltas")
    sums = ([getattr(p, name) for p in parts] for name in lists)
    mean = one.reduction == "mean"
    tensors = one.inner, one.hidden, one.labels, one.tokens
    results = operators.head_merge(*sums, *tensors, one.softcap, one.scale, mean, one.seed)
    return gathered(results, one.reduction, "ghost", one.seed)


def _options(p: HeadGramPartial) -> tuple[object, ...]:
    sketch = p.deltas.shape[-1], p.seed if p.deltas.shape[-1] else 0
    return p.softcap, p.scale, p.reduction, p.products.dtype, *sketch
