"""Gradients in every layout and floating dtype, and what grad_gram must make of them."""

from __future__ import annotations

import torch
from comparing import cosine_scaled

from oasis import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def assert_gram(got, grads, plain=None):
    """``got`` against float64 truth, in units of cosine.

    The inputs are exact, so every dtype is held to what float32 sums of short runs may lose; a
    plain torch product at that precision must not be better by more than rounding.
    """
    truth = reference.grad_gram(grads)
    first = grads if isinstance(grads, torch.Tensor) else grads[0]
    bound = 1e-14 if first.dtype == torch.float64 else 5e-7
    assert got.dtype == torch.float64 and got.shape == truth.shape
    assert torch.equal(got, got.T), "not symmetric to the bit"
    error = cosine_scaled(got - truth, truth).max()
    assert error <= bound, f"error {error:.3g} of a cosine, allowed {bound:.3g}"
    if plain is not None:
        theirs = cosine_scaled(plain.double() - truth, truth).max()
        assert error <= theirs + 1e-7, f"error {error:.3g}, plain torch {theirs:.3g}"


def layouts(g):
    base = torch.randn(40, 60, generator=g)
    cube = torch.randn(6, 10, 12, generator=g)
    return {
        "transposed": base.T,
        "rows sliced": base[3:20],
        "every other row": base[::2],
        "columns sliced": base[:, 5:38],
        "every third column": base[:, 1::3],
        "rows and columns stepped": base[1::4, ::5],
        "offset into storage": base.flatten()[7:607].view(12, 50),
        "broadcast sample": base[0].expand(5, 60),
        "broadcast element": base[:5, :1].expand(5, 33),
        "broadcast both": base[:1, :1].expand(4, 9),
        "inner transposed": cube.transpose(1, 2),
        "sample last": cube.permute(2, 0, 1),
        "sample in the middle": cube.permute(1, 2, 0),
        "inner sliced": cube[:, 2:9, 1::4],
        "inner broadcast": cube[:, :, :1].expand(6, 10, 5),
        "channels last": torch.randn(3, 4, 5, 6, generator=g).to(memory_format=torch.channels_last),
        "overlapping windows": base.flatten().as_strided((6, 20), (3, 2)),
        "singleton axes": cube[:, None, :, None],
        "one number per sample": base[:, :1],
    }
