"""Candidates on their way to a selection: checked, and with zeros where one cannot be scored.

What of a batch is wrong by its numbers is found where they are. On the CPU that is an error at
once, eager or compiled. On a GPU it becomes a code beside the results, and a batch that selects
nothing: an error would have to wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core
from oasis.names import WRONGS
from oasis.operators import launch
from oasis.operators.buffers import address, gram64, read_buffer, usable_inputs
from oasis.operators.library import implement

_ONE_BLOCK = 1024  # samples that one block of the kernel looks through fast enough
_LARGEST = _core.LARGEST
_SMALLEST = torch.finfo(torch.float64).tiny
_TOLD = {
    "negative": "gram: negative diagonal{at}, expected squared norms",
    "products": "gram: {at}expected inner products: symmetric, and at most the product of the "
    "norms",
    "score": "scores: {at}expected numbers >= 0",
    "skipped": f"{{source}}: {{at}} are not finite (or exceed {_LARGEST:g}); use nonfinite='skip' "
    "to leave such samples out",
    "entries": "gram: non-finite entries{at}",
}
_SOMEWHERE = {
    "skipped": "gradients or scores of some samples",
    "entries": " between samples with finite norms",
}
_WRONGS = tuple(WRONGS)


def _error(wrong: str, at: str | None = None, source: str = "") -> ValueError:
    """The error of what is wrong with a batch: `at` says where and what, as far as it is known."""
    return ValueError(_TOLD[wrong].format(at=at or _SOMEWHERE.get(wrong, ""), source=source))


def deferred_error(code: int, source: str) -> ValueError:
    """The error that a batch on a GPU has become, from its code."""
    return _error(_WRONGS[code], source=source)


def _check_products(fault: int, i: int, j: int, gram: Tensor) -> None:
    """ValueError where the fault found is one of products, with its place and its numbers."""
    if fault == WRONGS["negative"]:
        raise _error("negative", f" {float(gram[i, i]):g} at {i}")
    if fault == WRONGS["products"]:
        there = f"{float(gram[i, j]):g} at [{i}, {j}] and {float(gram[j, i]):g} at [{j}, {i}]"
        norms = f"{float(gram[i, i]):g} and {float(gram[j, j]):g}"
        raise _error("products", f"got {there} between squared norms {norms}; ")


@implement("inner_products", "CPU", "CUDA")  # reads, on a GPU too: what `oasis.siren` takes
def _(gram: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The Gram matrix as float64, and who is valid; entries among those are finite."""
    matrix, n = gram64(gram)
    here = matrix.cpu()
    if valid is not None:
        valid = read_buffer("valid", valid, torch.bool, (n,), valid.device)
    known = None if valid is None else valid.cpu()
    fault, i, j = _core.inner_products(here.data_ptr(), address(known), n)
    _check_products(fault, i, j, here)
    if fault:
        broken = ~here.isfinite()
        if known is not None:
            broken &= known.unsqueeze(0) & known.unsqueeze(1)
        samples = broken.any(1).nonzero().squeeze(1).tolist()
        raise _error("entries", f" in the rows of samples {samples}")
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
    _check_products(fault, i, j, gram)
    if fault == WRONGS["skipped"]:
        what = "gradients or scores" if scores is not None else "gradients"
        samples = skipped.nonzero().squeeze(1).tolist()
        raise _error("skipped", f"the {what} of samples {samples}", source)
    if fault == WRONGS["score"] and scores is not None:
        raise _error("score", f"got {float(scores[i]):g} at {i}, ")
    if fault:
        raise _error(_WRONGS[fault])


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
    finite = (own < _LARGEST) & (norms < _LARGEST)
    if sketch is not None:
        finite &= sketch.isfinite().all(1)
    given = torch.ones_like(finite) if valid is None else valid
    skipped = given & ~finite
    kept = given & finite & (own > 0) & (norms > 0)
    left = torch.where(kept.unsqueeze(0) & kept.unsqueeze(1), matrix, 0.0)
    found = [("entries", ~left.isfinite())]
    if raises:
        found.append(("skipped", skipped))
    if scores is not None:
        found.append(("score", given & (scores < 0)))
    if source == "gram":
        # Products with a norm whose square is too small for float64 need not be: usable.h.
        lengths = torch.where(norms < _SMALLEST, _SMALLEST, norms).sqrt()
        limit = lengths.outer(lengths)
        excess = torch.maximum(matrix.abs() - limit, (matrix - matrix.T).abs())
        impossible = (excess > _core.PRODUCT_SLACK * limit) & given & given.unsqueeze(1)
        found += [("products", impossible), ("negative", given & (norms < 0))]
    fault = torch.zeros((), dtype=torch.int64, device=gram.device)
    for name, wrong in found:  # the last is the one that is reported
        fault = torch.where(wrong.any(), WRONGS[name], fault)
    kept = kept & (fault == 0)
    left = torch.where(fault == 0, left, 0.0)
    return left, torch.where(kept, own, 0.0), kept, skipped, fault
