"""The count sketch of long vectors."""

import torch

from oasis.train.signals.sketch import CountSketch


def test_a_sketch_keeps_inner_products_in_expectation():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 700, generator=g, dtype=torch.float64)
    b = a + 0.5 * b
    sketches = [CountSketch(64, seed)(torch.stack([a, b]), 13) for seed in range(400)]
    products = torch.stack([s[0] @ s[1] for s in sketches])
    deviation = (2 / 64) ** 0.5 * a.norm() * b.norm()  # the bound of the docstring
    assert abs(products.mean() - a @ b) < 4 * deviation / 400**0.5
    assert products.std() < 1.2 * deviation
    assert products.std() > 0.2 * deviation  # seeds do differ


def test_sketches_of_pieces_add_up():
    values = torch.randn(3, 500, dtype=torch.float64)
    sketch = CountSketch(64, seed=5)
    whole = sketch(values, 40)
    pieces = (
        sketch(values[:, :90], 40) + sketch(values[:, 90:91], 130) + sketch(values[:, 91:], 131)
    )
    assert torch.allclose(whole, pieces, rtol=1e-12, atol=1e-12)
    # Every number lands in one bucket, as itself or negated, and both happen.
    ones = sketch(torch.eye(500, dtype=torch.float64), 40)
    assert ((ones != 0).sum(dim=1) == 1).all() and (ones.abs().sum(dim=1) == 1).all()
    assert 200 < (ones.sum(dim=1) > 0).sum() < 300
    assert (ones != 0).sum(dim=0).max() < 20  # 500 over 64 buckets
