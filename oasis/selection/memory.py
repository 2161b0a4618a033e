"""What a remembering Selector keeps of a sample: a sketch of its gradient (docs/method.md 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oasis import operators
from oasis.gram import HeadGram

WIDTH = 512  # numbers a sketch: inner products to about sqrt(2 / 512) of the norms
SEED = 0  # of the sketches of given gradients; one for all, or they could not be compared


@dataclass(frozen=True)
class Sketches:
    """rows: [N, WIDTH] float64. kind: what they are sketches of; inner products between two kinds
    mean nothing. source: the caller's argument, for errors."""

    rows: Tensor
    kind: str
    source: str


def sketches(
    grads: Tensor | Sequence[Tensor] | None, gram: Tensor | HeadGram | None, sketch: Tensor | None
) -> Sketches:
    """Of what `Selector.select` was given; the Gram matrix of it has been checked already.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if grads is not None:
        tensors = [g.detach() for g in ([grads] if isinstance(grads, Tensor) else grads)]
        count = sum(g[0].numel() for g in tensors)
        rows = operators.grad_sketch(tensors, WIDTH, SEED)
        return Sketches(rows, f"gradients of {count} numbers", "grads")
    if isinstance(gram, HeadGram):
        if gram.sketch is None:
            raise TypeError(
                "gram: got a HeadGram without sketches, expected one of "
                f"oasis.head_gram(..., sketch={WIDTH}), as this selector remembers samples"
            )
        rows = check_sketch("gram.sketch", gram.sketch, gram.gram)
        kind = f"head sketches of {rows.shape[1]} numbers with the seed {gram.seed}"
        return Sketches(_padded(rows), kind, "gram")
    if sketch is None:
        raise TypeError(
            "sketch: got None, expected sketches [N, S] of the samples beside their Gram matrix, "
            "as this selector remembers samples"
        )
    return Sketches(_padded(sketch), f"given sketches of {sketch.shape[1]} numbers", "sketch")


def check_sketch(name: str, sketch: object, gram: Tensor) -> Tensor:
    """`sketch`, or an error that names it unless it may accompany a Gram matrix [N, N]."""
    n = len(gram)
    if not isinstance(sketch, Tensor) or not sketch.dtype.is_floating_point:
        got = sketch.dtype if isinstance(sketch, Tensor) else type(sketch).__name__
        raise TypeError(f"{name}: got {got}, expected a floating-point tensor [{n}, S]")
    if sketch.ndim != 2 or len(sketch) != n or not 1 <= sketch.shape[1] <= WIDTH:
        expected = f"[{n}, S] with 1 <= S <= {WIDTH}"
        raise ValueError(f"{name}: got shape {list(sketch.shape)}, expected {expected}")
    if sketch.device != gram.device:
        raise ValueError(f"{name}: got device {sketch.device}, expected {gram.device} as of gram")
    return sketch.detach()


def _padded(rows: Tensor) -> Tensor:
    """[N, S] as float64 [N, WIDTH]."""
    return F.pad(rows.to(torch.float64), (0, WIDTH - rows.shape[1]))
