"""Candidates on their way to a selection: checked, and with zeros where one cannot be scored.

What of a batch is wrong by its numbers is found where they are. On the CPU that is an error at
once, eager or compiled. On a GPU it becomes a code beside the results, and a batch that selects
nothing: an error would have to wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core
from oasis.operators import launch
from oasis.operators.buffers import address, gram64, read_buffer, usable_inputs
from oasis.operators.library import implement

LARGEST = 1e150  # beyond, the variance of the scores would overflow, and never decay
_ONE_BLOCK = 1024  # samples that one block of the kernel looks through fast enough
_SLACK = 0.01  # what a Gram matrix in low precision may miss Cauchy-Schwarz and symmetry by
# Codes of what is wrong, as `enum class Wrong` in csrc/include/oasis/usable.h; 0 is nothing.
NEGATIVE, PRODUCTS, SCORE, SKIPPED, ENTRIES = range(1, 6)
_TOLD = {
    NEGATIVE: "{gram}: negative diagonal, expected squared norms",
    PRODUCTS: "{gram}: expected inner products: symmetric, and at most the product of the norms",
    SCORE: "scores: expected numbers >= 0",
    SKIPPED: f"{{source}}: samples whose gradients or scores are not finite (or exceed {LARGEST:g})"
    "; use nonfinite='skip' to leave such samples out",
    ENTRIES: "{gram}: non-finite entries between samples with finite norms",
}


def deferred_error(code: int, source: str) -> ValueError:
    """The error that a batch on a GPU has become, from its code."""
    return ValueError(_TOLD[code].format(gram="gram", source=source))


def _products_error(fault: int, i: int, j: int, gram: Tensor) -> ValueError:
    """What no inner product can be, with its place and its numbers."""
    if fault == NEGATIVE:
        return ValueError(
            f"gram: negative diagonal {float(gram[i, i]):g} at {i}, expected squared norms"
        )
    return ValueError(
        f"gram: got {float(gram[i, j]):g} at [{i}, {j}] and {float(gram[j, i]):g} at "
        f"[{j}, {i}] between squared norms {float(gram[i, i]):g} and {float(gram[j, j]):g}; "
        "expected inner products: symmetric, and at most the product of the norms"
    )


@implement("inner_products", "CPU", "CUDA")  # reads, on a GPU too: what `oasis.siren` takes
def _(gram: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The Gram matrix as float64, and who is valid; entries among those are finite."""
    matrix, n = gram64(gram)
    here = matrix.cpu()
    if valid is not None:
        valid = read_buffer("valid", valid, torch.bool, (n,), valid.device)
    known = None if valid is None else valid.cpu()
    fault, i, j = _core.inner_products(here.data_ptr(), address(known), n)
    if fault in (NEGATIVE, PRODUCTS):
        raise _products_error(fault, i, j, here)
    if fault:
        broken = ~here.isfinite()
        if known is not None:
            broken &= known.unsqueeze(0) & known.unsqueeze(1)
        samples = broken.any(1).nonzero().squeeze(1).tolist()
        raise ValueError(f"gram: non-finite entries in the rows of samples {samples}")
    if valid is None:
        valid = gram.new_ones(n, dtype=torch.bool)
    else:
        valid = valid.to(gram.device, copy=True)
    return matrix.clone() if matrix.data_ptr() == gram.data_ptr() else matrix, valid


def raise_finding(
    found: tuple[int, int, int], gram: Tensor, scores: Tensor | None, skipped: Tensor, source: str
) -> None:
    """An error where the compiled core found (code, i, j) to be wrong with a batch."""
    fault, i, j = found
    if not fault:
        return
    if fault in (NEGATIVE, PRODUCTS):
        raise _products_error(fault, i, j, gram)
    if fault == SCORE and scores is not None:
        raise ValueError(f"scores: got {float(scores[i]):g} at {i}, expected numbers >= 0")
    if fault == SKIPPED:
        what = "gradients" if scores is None else "gradients or scores"
        raise ValueError(
            f"{source}: the {what} of samples {skipped.nonzero().squeeze(1).tolist()} are "
            f"not finite (or their squared norm exceeds {LARGEST:g}); "
            "use nonfinite='skip' to leave such samples out"
        )
    raise ValueError("gram: non-finite entries between samples with finite norms")


@implement("usable", "CPU")
def _(
    gram: Tensor,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    source: str,
    raises: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    matrix, valid, scores, sketch = usable_inputs(gram, valid, scores, sketch)
    n, width = matrix.shape[0], 0 if sketch is None else sketch.shape[1]
    left, informativeness = torch.empty_like(matrix), matrix.new_empty(n)
    kept, skipped = (torch.empty(n, dtype=torch.bool) for _ in range(2))
    found = _core.usable(
        matrix.data_ptr(),
        address(valid),
        address(scores),
        address(sketch),
        n,
        width,
        source == "gram",  # those of given gradients are inner products
        raises,
        left.data_ptr(),
        informativeness.data_ptr(),
        kept.data_ptr(),
        skipped.data_ptr(),
    )
    raise_finding(found, matrix, scores, skipped, source)
    return left, informativeness, kept, skipped, torch.zeros((), dtype=torch.int64)


@implement("usable", "CUDA")
def usable_on_gpu(
    gram: Tensor,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    source: str,
    raises: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same without a value that the host reads: the last result is the code of what is wrong,
    and nobody is valid then."""
    matrix, valid, scores, sketch = usable_inputs(gram, valid, scores, sketch)
    if launch.BUILT and len(matrix) <= _ONE_BLOCK:
        return launch.usable(matrix, valid, scores, sketch, source == "gram", raises)
    norms = matrix.diagonal()
    own = norms if scores is None else scores
    finite = (own < LARGEST) & (norms < LARGEST)
    if sketch is not None:
        finite &= sketch.isfinite().all(1)
    given = torch.ones_like(finite) if valid is None else valid
    skipped = given & ~finite
    kept = given & finite & (own > 0) & (norms > 0)
    left = torch.where(kept.unsqueeze(0) & kept.unsqueeze(1), matrix, 0.0)
    found = [(ENTRIES, ~left.isfinite())]
    if raises:
        found.append((SKIPPED, skipped))
    if scores is not None:
        found.append((SCORE, scores < 0))
    if source == "gram":
        limit = norms.sqrt().outer(norms.sqrt())
        excess = torch.maximum(matrix.abs() - limit, (matrix - matrix.T).abs())
        found += [(PRODUCTS, excess > _SLACK * limit), (NEGATIVE, norms < 0)]
    fault = torch.zeros((), dtype=torch.int64, device=gram.device)
    for code, wrong in found:  # the last is the one that is reported
        fault = torch.where(wrong.any(), code, fault)
    kept = kept & (fault == 0)
    left = torch.where(fault == 0, left, 0.0)
    return left, torch.where(kept, own, 0.0), kept, skipped, fault
