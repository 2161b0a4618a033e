"""Redundancy across batches: what remembered gradients leave of a batch's Gram matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 0xFFFFFFFFFFFFFFFF


def split_mix(seed: int, counter: int) -> int:
    """Output number ``counter`` of SplitMix64 (Steele, Lea and Flood 2014) from ``seed``."""
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def grad_sketch(grads: Tensor | Sequence[Tensor], dim: int, seed: int) -> Tensor:
    """Sketches ``[N, dim]`` of gradients ``[N, ...]``, or one such per parameter.

    Number p of a sample goes with a random sign into bucket p + shift modulo ``dim``, where each
    run of ``dim`` numbers has a random shift. At most ``dim`` numbers are taken as they are.
    """
    parameters = [grads] if isinstance(grads, Tensor) else list(grads)
    flat = torch.cat([p.detach().double().reshape(len(p), -1) for p in parameters], 1)
    n, count = flat.shape
    out = torch.zeros(n, dim, dtype=torch.float64)
    for p in range(count):
        if count <= dim:
            out[:, p] = flat[:, p]
            continue
        shift = ((split_mix(seed, 2 * (p // dim)) >> 32) * dim) >> 32
        minus = split_mix(seed, 2 * (p // 64) + 1) >> (p % 64) & 1
        out[:, (p + shift) % dim] += (-1) ** minus * flat[:, p]
    return out


def remembered(
    gram: Tensor, sketch: Tensor, valid: Tensor, memory: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """``K - K_M (K_MM + ridge mean(I) 1)^-1 K_M^T`` of N samples, and their rescaled sketches.

    ``memory [m, S]`` holds the remembered sketches alone. Products with them come from sketches
    ``[N, S]``, rescaled so that their squared norms are the diagonal of ``gram``.
    """
    gram, sketch = gram.double(), sketch.double()
    scaled = torch.zeros_like(sketch)
    for i in range(len(gram)):
        norm = sketch[i].norm()
        if valid[i] and norm > 0:
            scaled[i] = sketch[i] * (gram[i, i].sqrt() / norm)
    if len(memory) == 0 or not valid.any():
        return gram.clone(), scaled
    noise = ridge * gram.diagonal()[valid].mean()
    across, within = scaled @ memory.T, memory @ memory.T
    within += noise * torch.eye(len(memory), dtype=torch.float64)
    left = gram - across @ torch.linalg.inv(within) @ across.T
    norms = left.diagonal().clamp(min=0).sqrt()
    limit = norms[:, None] * norms[None, :]
    return torch.minimum(torch.maximum(left, -limit), limit), scaled
