"""SIREN: informativeness less what the rest of the batch already teaches (docs/method.md 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oasis import _core, ops
from oasis.checks import check_number
from oasis.names import check_name

MAX_EXACT = _core.MAX_EXACT
_SLACK = 0.01  # what a Gram matrix in low precision may miss Cauchy-Schwarz and symmetry by
AUTO_EXACT = 20  # "auto" is exact up to here: 1 ms; every further sample doubles it


@dataclass(frozen=True)
class SirenResult:
    """adjusted: [N] float64, each sample's score when it was picked (0 where not valid).
    order: [<= N] int64, sample indices in the order of the picks. method: the rule used."""

    adjusted: Tensor
    order: Tensor
    method: str


def check_gram(gram: Tensor, name: str = "gram") -> Tensor:
    """`gram` as float64, or an error that names it."""
    if not isinstance(gram, Tensor) or not gram.dtype.is_floating_point:
        got = gram.dtype if isinstance(gram, Tensor) else type(gram).__name__
        raise TypeError(f"{name}: got {got}, expected a floating-point tensor [N, N]")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or gram.shape[0] == 0:
        raise ValueError(f"{name}: got shape {list(gram.shape)}, expected [N, N] with N >= 1")
    if (gram.diagonal() < 0).any():
        at = int((gram.diagonal() < 0).nonzero()[0])
        raise ValueError(
            f"{name}: negative diagonal {float(gram[at, at]):g} at {at}, expected squared norms"
        )
    gram = gram.detach().to(torch.float64)
    norms = gram.diagonal().sqrt()
    limit = torch.outer(norms, norms)
    excess = torch.maximum(gram.abs() - limit, (gram - gram.T).abs())
    if (wrong := excess > _SLACK * limit).any():
        i, j = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: got {float(gram[i, j]):g} at [{i}, {j}] and {float(gram[j, i]):g} at "
            f"[{j}, {i}] between squared norms {float(gram[i, i]):g} and {float(gram[j, j]):g}; "
            "expected inner products: symmetric, and at most the product of the norms"
        )
    return gram


def check_valid(valid: Tensor, n: int) -> None:
    """An error unless `valid` is a bool tensor [n]."""
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        got = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise TypeError(f"valid: got {got}, expected a bool tensor [{n}]")
    if valid.shape != (n,):
        raise ValueError(f"valid: got shape {list(valid.shape)}, expected [{n}]")


def check_rule(method: str, ridge: float, n: int, name: str = "method") -> str:
    """The rule that `method` (the caller's argument `name`) means for n samples."""
    check_name("rule", method, name, more=("auto",))
    check_number("ridge", ridge, 0, float("inf"), "a finite number >= 0")
    if method == "auto":
        return "exact" if n <= AUTO_EXACT else "mean_field"
    if method == "exact" and n > MAX_EXACT:
        raise ValueError(
            f"{name}: 'exact' visits 2^N subsets and takes at most N = {MAX_EXACT} samples, got "
            f"N = {n}; use 'mean_field', 'residual', 'pairwise' or 'auto'"
        )
    return method


def siren(
    gram: Tensor,
    *,
    method: str = "exact",
    ridge: float = 0.0,
    valid: Tensor | None = None,
) -> SirenResult:
    """Greedy redundancy removal inside a batch, from the Gram matrix of its gradients.

    Repeatedly picks the sample with the largest adjusted score (ties: the lowest index) and
    lowers the others by what they share with the picked set H (docs/method.md 2):

    - "exact": inclusion-exclusion over all subsets of H, each visited once (2.1). N <= 30; 20 us
      at N = 16, time and memory (8 bytes x 2^(N-2)) double with every further sample.
    - "mean_field": the same sum with ||sum_U g||^2 replaced by its mean over the subsets of one
      size (2.2). Any N, O(N^3).
    - "pairwise": the first sum only.
    - "residual": the squared norm of g_i outside the span of H, by pivoted Cholesky (2.3). Any N.
    - "none": scores as they are, in descending order.
    - "auto": "exact" up to N = 20, "mean_field" beyond.

    Args:
        gram: [N, N] symmetric, floating point; informativeness is its diagonal.
        ridge: "residual" only: lambda / mean informativeness, added to the picked samples' block.
        valid: [N] bool; the others are left out entirely (score 0, never picked).

    Raises:
        TypeError, ValueError: wrong type or shape, non-finite entries among the valid samples,
            unknown method, N beyond the limit of "exact".
        MemoryError: too little memory for the subsets of "exact".
    """
    gram = check_gram(gram)
    n = gram.shape[0]
    broken, count = ~torch.isfinite(gram), n
    if valid is None:
        valid = torch.ones(n, dtype=torch.bool, device=gram.device)
    else:
        check_valid(valid, n)
        broken &= valid.unsqueeze(0) & valid.unsqueeze(1)
        count = int(valid.sum())
    used = check_rule(method, ridge, count)
    if broken.any():
        samples = broken.any(1).nonzero().squeeze(1).tolist()
        raise ValueError(f"gram: non-finite entries in the rows of samples {samples}")
    floor = torch.full((), -torch.inf, dtype=torch.float64, device=gram.device)
    adjusted, order = ops.siren(gram, valid, floor, used, float(ridge))
    return SirenResult(adjusted, order[order >= 0], used)
