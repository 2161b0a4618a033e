"""One way to compare: relative, or in units of cosine."""

from __future__ import annotations

import torch


def float64(x) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def assert_relative(got, want, rtol: float, floor: float = 0.0) -> None:
    """Elementwise ``|got - want| <= rtol * max(|want|, floor)``; a failure shows the worst."""
    got, want = (torch.as_tensor(x, dtype=torch.float64) for x in (got, want))
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    assert torch.isfinite(got).all(), f"not finite: {got}"
    excess = (got - want).abs() - rtol * want.abs().clamp(min=floor)
    if excess.numel() and excess.max() > 0:
        at = int(excess.argmax())
        g, w = got.flatten()[at].item(), want.flatten()[at].item()
        raise AssertionError(
            f"worst at flat index {at}: got {g!r}, want {w!r}, "
            f"off by {abs(g - w):.3g}, allowed {rtol * max(abs(w), floor):.3g}"
        )


def cosine_scaled(error: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """An error in a Gram matrix in units of cosine: divided by ``sqrt(K_ii K_jj)``."""
    norm = gram.diagonal().sqrt()
    product = norm[:, None] * norm[None, :]
    return torch.where(product > 0, error.abs() / product.clamp(min=1e-300), error.abs())


def close(got, expected, tolerance=1e-6):
    return (got - expected).norm() <= tolerance * expected.norm()
