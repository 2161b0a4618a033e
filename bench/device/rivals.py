"""What else computes an output head: the forwards that head_gram's time is put beside.

None of them but per-sample autograd knows a Gram matrix; they show what the head alone costs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from oasis import grad_gram


@torch.no_grad()
def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """All logits, in float32 before the loss as in transformers."""
    return F.cross_entropy((hidden @ weight.T).float(), labels)


def autograd(hidden, weight, labels, sample, samples: int) -> Tensor:
    """Gram matrix [N, N] by way of every sample's gradient of the head, all kept."""
    weight = weight.detach().requires_grad_()
    grads = torch.empty((samples, *weight.shape), dtype=weight.dtype, device=weight.device)
    for i in range(samples):
        rows = sample == i
        loss = F.cross_entropy((hidden[rows] @ weight.T).float(), labels[rows])
        grads[i] = torch.autograd.grad(loss, weight)[0]
    return grad_gram(grads)


def found(hidden: Tensor, weight: Tensor, labels: Tensor) -> dict[str, Callable | str]:
    """Forward of every fused cross-entropy, or why it is not run."""
    rivals = {}
    for name, find in (
        ("torch linear_cross_entropy", _torch),
        ("liger-kernel", _liger),
        ("cut-cross-entropy", _cut),
    ):
        if find is not _torch and hidden.device.type != "cuda":
            rivals[name] = "needs a GPU"
            continue
        try:
            function = find()
        except (ImportError, AttributeError):
            rivals[name] = "not importable here"
            continue
        rivals[name] = torch.no_grad()(lambda f=function: f(hidden, weight, labels))
    return rivals


def _torch() -> Callable:
    return F.linear_cross_entropy


def _liger() -> Callable:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy


def _cut() -> Callable:
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy
