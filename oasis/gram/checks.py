"""Checks of the arguments of `head_gram`."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.checks import check_buffer, check_count, check_float, check_number
from oasis.gram.cost import METHODS
from oasis.names import IGNORED


def check_head_tensors(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    bias: Tensor | None,
) -> None:
    """Types, shapes and devices of the head and its tokens."""
    check_float("hidden", hidden)
    check_float("weight", weight)
    if hidden.ndim != 2 or hidden.shape[1] == 0:
        raise ValueError(f"hidden: got shape {list(hidden.shape)}, expected [T, D]")
    tokens, width = hidden.shape
    if weight.ndim != 2 or weight.shape[1] != width or weight.shape[0] == 0:
        raise ValueError(
            f"weight: got shape {list(weight.shape)}, expected [V, {width}] to match hidden"
        )
    vocabulary = weight.shape[0]
    if weight.dtype != hidden.dtype:
        raise TypeError(f"weight: got dtype {weight.dtype}, expected {hidden.dtype} as hidden")
    for name, value in (("labels", labels), ("sample", sample)):
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name}: got {got}, expected an int64 tensor [{tokens}]")
        if value.shape != (tokens,):
            raise ValueError(f"{name}: got shape {list(value.shape)}, expected [{tokens}]")
    if bias is not None:
        check_float("bias", bias)
        if bias.shape != (vocabulary,):
            raise ValueError(f"bias: got shape {list(bias.shape)}, expected [{vocabulary}]")
    tensors = {"hidden": hidden, "weight": weight, "labels": labels, "sample": sample}
    if bias is not None:
        tensors["bias"] = bias
    for name, value in tensors.items():
        check_buffer(name, value, value.dtype, None, hidden.device)


def check_head(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float | None,
    scale: float,
    vocab_range: tuple[int, int] | None,
) -> None:
    """The head and its tokens, but for what labels and samples hold (`check_head_values`)."""
    check_head_tensors(hidden, weight, labels, sample, bias)
    vocabulary = weight.shape[0]
    check_count("num_samples", num_samples, 1)
    infinity = float("inf")
    if softcap is not None:
        check_number("softcap", softcap, 5e-324, infinity, "a finite number > 0 or None")
    check_number("scale", scale, -infinity, infinity, "a finite number")
    if vocab_range is not None:
        _check_range(vocab_range, vocabulary)


def check_head_values(labels: Tensor, sample: Tensor, num_samples: int, end: int) -> None:
    """Labels in [0, end) or ignored, samples in [0, num_samples); reads both."""
    outside = (sample < 0) | (sample >= num_samples)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"sample: got {int(sample[at])} at position {at}, expected 0 to {num_samples - 1}"
        )
    outside = ((labels < 0) & (labels != IGNORED)) | (labels >= end)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"labels: got {int(labels[at])} at position {at} (sample {int(sample[at])}), expected "
            f"0 to {end - 1}, or -100 to ignore the position"
        )


def check_method(
    method: str,
    reduction: str,
    sketch_dim: int,
    seed: int,
    sketch: int,
    vocab_range: tuple[int, int] | None,
) -> None:
    """The options of the computation."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: got {reduction!r}, expected 'mean' or 'sum'")
    if method not in (*METHODS, "auto"):
        expected = ", ".join((*METHODS, "auto"))
        raise ValueError(f"method: got {method!r}, expected one of {expected}")
    if vocab_range is not None and method not in ("ghost", "auto"):
        raise ValueError(f"method: got {method!r} with vocab_range, expected 'ghost' or 'auto'")
    check_count("sketch_dim", sketch_dim, 16)
    check_count("seed", seed)
    check_count("sketch", sketch, bits=31)


def _check_range(vocab_range: tuple[int, int], rows: int) -> None:
    good = isinstance(vocab_range, tuple) and len(vocab_range) == 2
    good = good and all(isinstance(end, int) for end in vocab_range)
    if not good or not 0 <= vocab_range[0] < vocab_range[1]:
        raise ValueError(
            f"vocab_range: got {vocab_range!r}, expected (first, last), 0 <= first < last"
        )
    if vocab_range[1] - vocab_range[0] != rows:
        raise ValueError(f"vocab_range: got {vocab_range} for a weight of {rows} rows")
