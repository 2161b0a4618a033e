"""Gram matrices of random gradients, and how far they may be scaled."""

from __future__ import annotations

import torch


def random_gram(n, p, generator, clusters=0):
    grads = torch.randn(n, p, generator=generator, dtype=torch.float64)
    if clusters:
        centres = 2 * torch.randn(clusters, p, generator=generator, dtype=torch.float64)
        grads = grads + centres[torch.arange(n) % clusters]
    gram = grads @ grads.T
    return (gram + gram.T) / 2  # a BLAS may leave the halves a bit apart


# Of the Gram matrix, as powers of 4: to where its diagonal is the largest or the smallest that
# float64 holds with all its digits.
EXPONENTS = [-504, -300, -256, 256, 300, 508]
