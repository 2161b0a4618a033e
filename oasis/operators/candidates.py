"""Candidates on their way to a selection: checked, and with zeros where one cannot be scored.

What of a batch is wrong by its numbers is found where they are. On the CPU that is an error at
once, eager or compiled. On a GPU it becomes a code beside the results, and a batch that selects
nothing: an error would have to wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core
from oasis.checks import check_buffer
from oasis.names import WRONGS
from oasis.operators import launch
from oasis.operators.buffers import read_buffer
from oasis.operators.library import implement

_ONE_BLOCK = 1024  # samples that one block of the kernel looks through fast enough
_LARGEST = _core.LARGEST
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


def _gram64(gram: Tensor) -> tuple[Tensor, int]:
    """A floating-point Gram matrix as float64, its numbers side by side, and N."""
    n = gram.shape[0]
    check_buffer("gram", gram, gram.dtype, (n, n), gram.device)
    return gram.to(torch.float64).contiguous(), n


def _check_products(gram: Tensor) -> None:
    """ValueError for what no inner product can be, with its place and its numbers."""
    code, i, j = _core.inner_products(gram.data_ptr(), len(gram))
    if code == WRONGS["negative"]:
        raise _error("negative", f" {float(gram[i, i]):g} at {i}")
    if code == WRONGS["products"]:
        there = f"{float(gram[i, j]):g} at [{i}, {j}] and {float(gram[j, i]):g} at [{j}, {i}]"
        norms = f"{float(gram[i, i]):g} and {float(gram[j, j]):g}"
        raise _error("products", f"got {there} between squared norms {norms}; ")


@implement("inner_products", "CPU", "CUDA")  # reads, on a GPU too: what `oasis.siren` takes
def _(gram: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The Gram matrix as float64, and who is valid; entries among those are finite."""
    matrix, n = _gram64(gram)
    here = matrix.cpu()
    _check_products(here)
    if valid is not None:
        valid = read_buffer("valid", valid, torch.bool, (n,), valid.device)
    known = None if valid is None else valid.cpu()
    code, *_ = _core.finite_entries(here.data_ptr(), 0 if known is None else known.data_ptr(), n)
    if code:
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


def _inputs(
    gram: Tensor, valid: Tensor | None, scores: Tensor | None, sketch: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """What `usable` reads of N samples, contiguous, on the device of the Gram matrix."""
    matrix, n = _gram64(gram)
    device = gram.device
    if valid is not None:
        valid = read_buffer("valid", valid, torch.bool, (n,), device)
    if scores is not None:
        scores = read_buffer("scores", scores, torch.float64, (n,), device)
    if sketch is not None:
        sketch = read_buffer("sketch", sketch, torch.float64, (n, sketch.shape[1]), device)
    return matrix, valid, scores, sketch


@implement("usable", "CPU")
def _(
    gram: Tensor,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    source: str,
    raises: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    matrix, valid, scores, sketch = _inputs(gram, valid, scores, sketch)
    n, width = matrix.shape[0], 0 if sketch is None else sketch.shape[1]
    if source == "gram":  # those of given gradients are inner products
        _check_products(matrix)
    left, informativeness = torch.empty_like(matrix), matrix.new_empty(n)
    kept, skipped = (torch.empty(n, dtype=torch.bool) for _ in range(2))
    code, at, _ = _core.usable(
        matrix.data_ptr(),
        0 if valid is None else valid.data_ptr(),
        0 if scores is None else scores.data_ptr(),
        0 if sketch is None else sketch.data_ptr(),
        n,
        width,
        raises,
        left.data_ptr(),
        informativeness.data_ptr(),
        kept.data_ptr(),
        skipped.data_ptr(),
    )
    if code == WRONGS["skipped"]:
        what = "gradients or scores" if scores is not None else "gradients"
        samples = skipped.nonzero().squeeze(1).tolist()
        raise _error("skipped", f"the {what} of samples {samples}", source)
    if code == WRONGS["score"] and scores is not None:
        raise _error("score", f"got {float(scores[at]):g} at {at}, ")
    if code:
        raise _error(_WRONGS[code])
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
    matrix, valid, scores, sketch = _inputs(gram, valid, scores, sketch)
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
        found.append(("score", scores < 0))
    if source == "gram":
        limit = norms.sqrt().outer(norms.sqrt())
        excess = torch.maximum(matrix.abs() - limit, (matrix - matrix.T).abs())
        found += [("products", excess > _core.PRODUCT_SLACK * limit), ("negative", norms < 0)]
    fault = torch.zeros((), dtype=torch.int64, device=gram.device)
    for name, wrong in found:  # the last is the one that is told
        fault = torch.where(wrong.any(), WRONGS[name], fault)
    kept = kept & (fault == 0)
    left = torch.where(fault == 0, left, 0.0)
    return left, torch.where(kept, own, 0.0), kept, skipped, fault
