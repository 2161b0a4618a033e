"""SIREN: informativeness less what the rest of the batch already teaches (docs/method.md 2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oasis import _core, operators
from oasis.checks import check_number, readable
from oasis.names import check_name
from oasis.selection.checks import check_gram, check_valid

MAX_EXACT = _core.MAX_EXACT
AUTO_EXACT = 20  # "auto" is exact up to here: 1 ms; every further sample doubles it


@dataclass(frozen=True)
class SirenResult:
    """adjusted: [N] float64, each sample's score when it was picked (0 where not valid).
    picks: [N] int64, sample indices in the order of the picks, then -1. method: the rule used."""

    adjusted: Tensor
    picks: Tensor
    method: str

    @property
    def order(self) -> Tensor:
        """[<= N] int64, sample indices in the order of the picks."""
        return self.picks[self.picks >= 0]


def check_rule(method: str, ridge: float, name: str = "method") -> None:
    """An error unless there is a rule `method` (the caller's argument `name`)."""
    check_name("rule", method, name, more=("auto",))
    check_number("ridge", ridge, 0, float("inf"), "a finite number >= 0")


def counts(method: str, gram: Tensor) -> bool:
    """Whether it matters to `method` how many of the samples of `gram` [N, N] are valid."""
    return method in ("auto", "exact") and gram.shape[0] > AUTO_EXACT and readable(gram)


def rule_of(method: str, valid: Tensor, name: str = "method") -> str:
    """The rule that `method` (the caller's argument `name`) means for the samples `valid` [N].

    Where their number would have to wait for a device, or is not there yet, all N count.
    """
    if method not in ("auto", "exact"):
        return method
    n = valid.shape[0]
    if n <= AUTO_EXACT:
        return "exact"
    known = readable(valid)
    n = int(valid.sum()) if known else n
    if method == "auto":
        return "exact" if n <= AUTO_EXACT else "mean_field"
    if known and n > MAX_EXACT:
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
    if valid is not None:
        check_valid(valid, gram.shape[0])
    check_rule(method, ridge)
    matrix, kept = operators.inner_products(gram, valid)
    used = rule_of(method, kept)
    adjusted, picks = operators.siren(matrix, kept, None, used, float(ridge))
    return SirenResult(adjusted, picks, used)
