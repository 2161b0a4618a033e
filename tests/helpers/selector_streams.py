"""Batches of gradients for a Selector, and whether its state or its answers are the same."""

from __future__ import annotations

import torch

import oasis

PRESETS = ["calibrated", "paper", "released"]


def batches(count, n=8, p=20, seed=5):
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, p, generator=g) * (1 + torch.rand(n, 1, generator=g)) for _ in range(count)
    ]


def same(a: oasis.Selection, b: oasis.Selection) -> bool:
    names = ("mask", "informativeness", "adjusted", "relative", "probability", "order", "threshold")
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in names)


def snapshot(selector):
    return {k: v.clone() for k, v in selector.state_dict().items()}


def unchanged(selector, before):
    after = selector.state_dict()
    return before.keys() == after.keys() and all(torch.equal(after[k], before[k]) for k in before)
