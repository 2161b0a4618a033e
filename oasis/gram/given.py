"""Gram matrix of given per-sample gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from oasis import operators
from oasis.checks import check_grads


def grad_gram(grads: Tensor | Sequence[Tensor]) -> Tensor:
    """Gram matrix K_ij = <g_i, g_j> of per-sample gradients, in one pass over memory.

    Args:
        grads: [N, ...], one gradient per sample; or a sequence of such tensors, one per parameter,
            which are never concatenated (their Gram matrices add up). float32, bfloat16, float16
            or float64; any strides, without a copy (one on CUDA of gradients with gaps in a sample,
            and of such with more than eight dimensions).

    Returns:
        [N, N] float64 on the device of `grads`. float64 input is summed in float64; other types
        are multiplied and summed in float32 over runs of 32 products a lane, the runs in float64:
        the error is at most 2.3e-6 sum_p |g_ip g_jp|, about 1e-7 of it in practice (half types on
        CUDA, whose tensor cores cut off what they add: 2.5e-6, and up to 5e-7); on the CPU,
        gradients whose squares leave float32's range are summed in float64 instead. The order of
        summation is fixed, so a run repeats bit for bit. Beside the result the CPU takes as much
        again and half of it, or 8 MiB for up to 128 samples.

    Raises:
        TypeError, ValueError: not tensors of a supported floating type; no sample; different
            numbers of samples or devices among the parameters.
        MemoryError: too little memory to work in.
    """
    tensors = [grads] if isinstance(grads, Tensor) else grads
    if not isinstance(tensors, Sequence) or not tensors:
        raise TypeError(
            f"grads: got {type(grads).__name__}, expected a tensor [N, ...] or a non-empty "
            "sequence of them, one per parameter"
        )
    check_grads(tensors, isinstance(grads, Tensor))
    return operators.grad_gram([g.detach() for g in tensors])
