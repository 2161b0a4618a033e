"""Gram matrices of last-layer gradients, sample by sample and token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oasis.names import IGNORED


def grad_gram(grads: Tensor | Sequence[Tensor]) -> Tensor:
    """Gram matrix ``K[i, j] = <g_i, g_j>`` of gradients ``[N, ...]``, or one such per parameter."""
    parameters = [grads] if isinstance(grads, Tensor) else list(grads)
    flat = [p.detach().to(torch.float64).reshape(p.shape[0], -1) for p in parameters]
    n = flat[0].shape[0]
    gram = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            gram[i, j] = sum((p[i] * p[j]).sum() for p in flat)
    return gram


@dataclass
class HeadGram:
    """What :func:`head_gram` returns: ``gram [N, N]`` and per-sample metrics ``[N]``."""

    gram: Tensor
    loss: Tensor
    entropy: Tensor
    el2n: Tensor
    correct: Tensor
    tokens: Tensor

    @property
    def perplexity(self) -> Tensor:
        """exp(loss), the perplexity where the reduction is "mean"."""
        return self.loss.exp()


def head_gram(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    reduction: str = "mean",
) -> HeadGram:
    """Gram matrix of the output head's per-sample gradients, each gradient written out (V x D).

    ``delta = p - onehot(y)`` keeps its label entry as minus the sum of the others, never as a
    difference from one, so a confident token loses nothing.
    """
    head = _float64(weight)
    offset = None if bias is None else _float64(bias)
    gradients = torch.zeros(num_samples, *head.shape, dtype=torch.float64)
    loss, entropy, el2n = (torch.zeros(num_samples, dtype=torch.float64) for _ in range(3))
    correct, tokens = (torch.zeros(num_samples, dtype=torch.int64) for _ in range(2))

    for h, y, i in zip(_float64(hidden), labels.tolist(), sample.tolist(), strict=True):
        if y == IGNORED:
            continue
        raw, z, slope = _logits(h, head, offset, softcap, scale)
        others = torch.cat([z[:y], z[y + 1 :]])
        nll = torch.nn.functional.softplus(torch.logsumexp(others, 0) - z[y], threshold=100)
        surprise = nll + (z[y] - z)  # -log p, each against the label's own
        surprise[y] = nll
        p = torch.exp(-surprise)
        delta = p.clone()
        delta[y] = 0.0
        delta[y] = -delta.sum()
        gradients[i] += torch.outer(delta * slope, h)
        loss[i] += nll
        entropy[i] += torch.where(p > 0, p * surprise, 0.0).sum()
        el2n[i] += delta.norm()
        # Before the cap, where no two logits run into one.
        correct[i] += int((raw > raw[y]).sum() == 0 and (raw == raw[y]).sum() == 1)
        tokens[i] += 1

    if reduction == "mean":
        count = tokens.clamp(min=1).to(torch.float64)
        gradients /= count[:, None, None]
        loss, entropy, el2n = loss / count, entropy / count, el2n / count
    return HeadGram(grad_gram(gradients), loss, entropy, el2n, correct, tokens)


def autograd_head_grads(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Per-sample gradients of the head ``[N, V, D]`` by autograd, one backward per sample.

    Shares no formula with :func:`head_gram`; good where no token is confident.
    """
    gradients = torch.zeros(num_samples, *weight.shape, dtype=torch.float64)
    for i in range(num_samples):
        own = (sample == i) & (labels != IGNORED)
        if not own.any():
            continue
        head = _float64(weight).clone().requires_grad_()
        z = _float64(hidden)[own] @ head.T
        z = scale * (z if bias is None else z + _float64(bias))
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        loss = torch.nn.functional.cross_entropy(z, labels[own], reduction=reduction)
        gradients[i] = torch.autograd.grad(loss, head)[0]
    return gradients


def _logits(h, head, offset, softcap, scale):
    """Logits ``[V]`` of one token before and after the cap, and their slope: d logit / d (W h)."""
    raw = scale * (head @ h if offset is None else head @ h + offset)
    slope = torch.full_like(raw, scale)
    if softcap is None:
        return raw, raw, slope
    return raw, softcap * torch.tanh(raw / softcap), slope / torch.cosh(raw / softcap) ** 2


def _float64(x: Tensor) -> Tensor:
    return x.detach().to(torch.float64)
