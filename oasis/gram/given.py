"""Gram matrix of given per-sample gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from oasis import ops
from oasis.checks import check_float


def grad_gram(grads: Tensor | Sequence[Tensor]) -> Tensor:
    """Gram matrix K_ij = <g_i, g_j> of per-sample gradients, in one pass over memory.

    Args:
        grads: [N, ...], one gradient per sample; or a sequence of such tensors, one per parameter,
            which are never concatenated (their Gram matrices add up). float32, bfloat16, float16
            or float64; any strides, without a copy (on CUDA, of gradients with gaps in a
            sample, one).

    Returns:
        [N, N] float64 on the device of `grads`. float64 input is summed in float64; other types
        are multiplied and summed in float32 over runs of 32 products a lane, the runs in float64:
        the error is at most 2.3e-6 sum_p |g_ip g_jp|, about 1e-7 of it in practice; on the CPU,
        gradients whose squares leave float32's range are summed in float64 instead. The order of
        summation is fixed, so a run repeats bit for bit.

    Raises:
        TypeError, ValueError: not tensors of a supported floating type; no sample; different
            numbers of samples or devices among the parameters.
    """
    tensors = [grads] if isinstance(grads, Tensor) else grads
    if not isinstance(tensors, Sequence) or not tensors:
        raise TypeError(
            f"grads: got {type(grads).__name__}, expected a tensor [N, ...] or a non-empty "
            "sequence of them, one per parameter"
        )
    for i, g in enumerate(tensors):
        name = "grads" if isinstance(grads, Tensor) else f"grads[{i}]"
        check_float(name, g)
        # A parameter that is a single number has a gradient [N]; alone it is more likely a mistake.
        if g.numel() == 0 or g.ndim < (2 if isinstance(grads, Tensor) else 1):
            raise ValueError(
                f"{name}: got shape {list(g.shape)}, expected [N, ...] with N >= 1 samples and at "
                "least one number per sample"
            )
        if g.shape[0] != tensors[0].shape[0]:
            raise ValueError(
                f"{name}: got {g.shape[0]} samples, expected {tensors[0].shape[0]} as in grads[0]"
            )
        if g.device != tensors[0].device:
            raise ValueError(
                f"{name}: got device {g.device}, expected {tensors[0].device} as in grads[0]"
            )
    return ops.grad_gram([g.detach() for g in tensors])
