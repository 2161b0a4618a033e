"""Checks of arguments, shared: errors name the argument, what was got and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor

from oasis import head_cost
from oasis.buffers import check_buffer

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _got(value) -> str:
    plain = value is None or isinstance(value, (str, bool, int, float))
    return repr(value) if plain else type(value).__name__


def check_number(name: str, value, low: float, high: float, expected: str) -> float:
    """`value` as a float in (low, high), closed where an end is finite; bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {_got(value)}, expected {expected}")
    if not low <= value <= high or abs(value) == float("inf"):
        raise ValueError(f"{name}: got {value!r}, expected {expected}")
    return float(value)


def check_count(name: str, value, low: int = 0, bits: int = 63) -> int:
    """`value`, an integer in [low, 2^bits)."""
    expected = f"an integer in [{low}, 2^{bits})"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: got {_got(value)}, expected {expected}")
    if not low <= value < 1 << bits:
        raise ValueError(f"{name}: got {value!r}, expected {expected}")
    return int(value)


def check_float(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name}: got dtype {tensor.dtype}, expected float32, bfloat16, float16 or float64"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: got layout {tensor.layout}, expected a dense (strided) tensor")


def check_grads(grads: Sequence[Tensor], single: bool = False) -> None:
    """Per-sample gradients, one tensor [N, ...] per parameter, or a `single` one."""
    for i, g in enumerate(grads):
        name = "grads" if single else f"grads[{i}]"
        check_float(name, g)
        # A parameter that is a single number has a gradient [N]; alone it is more likely a mistake.
        if g.numel() == 0 or g.ndim < (2 if single else 1):
            raise ValueError(
                f"{name}: got shape {list(g.shape)}, expected [N, ...] with N >= 1 samples and at "
                "least one number per sample"
            )
        if g.shape[0] != grads[0].shape[0]:
            raise ValueError(
                f"{name}: got {g.shape[0]} samples, expected {grads[0].shape[0]} as in grads[0]"
            )
        check_buffer(name, g, FLOATS, None, grads[0].device)


def check_head_tensors(hidden, weight, labels, sample, bias) -> None:
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
    tensors = {"hidden": hidden, "weight": weight, "labels": labels, "sample": sample, "bias": bias}
    for name, value in tensors.items():
        if value is not None:
            check_buffer(name, value, value.dtype, None, hidden.device)


def check_head(
    hidden, weight, labels, sample, num_samples, bias, softcap, scale, vocab_range
) -> None:
    """The head and its tokens."""
    check_head_tensors(hidden, weight, labels, sample, bias)
    vocabulary = weight.shape[0]
    check_count("num_samples", num_samples, 1)
    infinity = float("inf")
    if softcap is not None:
        check_number("softcap", softcap, 5e-324, infinity, "a finite number > 0 or None")
    check_number("scale", scale, -infinity, infinity, "a finite number")
    outside = (sample < 0) | (sample >= num_samples)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"sample: got {int(sample[at])} at position {at}, expected 0 to {num_samples - 1}"
        )
    end = vocabulary
    if vocab_range is not None:
        _check_range(vocab_range, vocabulary)
        end = 1 << 62  # the whole head's size is known to merge alone
    outside = ((labels < 0) & (labels != -100)) | (labels >= end)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"labels: got {int(labels[at])} at position {at} (sample {int(sample[at])}), expected "
            f"0 to {end - 1}, or -100 to ignore the position"
        )


def check_method(method, reduction, sketch_dim, seed, vocab_range) -> None:
    """The options of the computation."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: got {reduction!r}, expected 'mean' or 'sum'")
    if method not in (*head_cost.METHODS, "auto"):
        expected = ", ".join((*head_cost.METHODS, "auto"))
        raise ValueError(f"method: got {method!r}, expected one of {expected}")
    if vocab_range is not None and method not in ("ghost", "auto"):
        raise ValueError(f"method: got {method!r} with vocab_range, expected 'ghost' or 'auto'")
    check_count("sketch_dim", sketch_dim, 16)
    check_count("seed", seed)


def _check_range(vocab_range, rows: int) -> None:
    good = isinstance(vocab_range, tuple) and len(vocab_range) == 2
    good = good and all(isinstance(end, int) for end in vocab_range)
    if not good or not 0 <= vocab_range[0] < vocab_range[1]:
        raise ValueError(
            f"vocab_range: got {vocab_range!r}, expected (first, last), 0 <= first < last"
        )
    if vocab_range[1] - vocab_range[0] != rows:
        raise ValueError(f"vocab_range: got {vocab_range} for a weight of {rows} rows")
