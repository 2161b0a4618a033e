"""Positional arguments of the operator behind head_gram."""

from __future__ import annotations

import torch


def head_operands(dtype, with_bias, masked, generator):
    return (
        torch.randn(6, 4, generator=generator).to(dtype),
        torch.randn(30, 4, generator=generator).to(dtype),
        torch.tensor([-100] * 6 if masked else [3, -100, 29, 0, 3, 7]),
        torch.tensor([0, 0, 1, 2, 2, 2]),
        4,
        torch.randn(30, generator=generator).to(dtype) if with_bias else None,
        5.0 if with_bias else 0.0,
        1.0,
        True,
    )
