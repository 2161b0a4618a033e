"""A candidate batch with every signal a policy may declare."""

import torch

from oasis.policies import Signals

CLUSTERING = ("selfsup", "coincide", "dbp", "tive", "adapt_inf")
WIDTH, PROJECTED, VALIDATION = 12, 8192, 8


def signals(n, seed=0, masked=()):
    """Random signals of `n` samples; those in `masked` have no label token, and zero gradients."""
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(n, 40, generator=g, dtype=torch.float64)
    tokens = torch.randint(1, 5, (n,), generator=g)
    for i in masked:
        grads[i] = 0
        tokens[i] = 0
    labelled = (tokens > 0).double()
    validation = torch.randn(VALIDATION, 40, generator=g, dtype=torch.float64)
    # Small and sparse enough that a test of a whole stream stays fast.
    projected = [torch.zeros(n, PROJECTED) for _ in range(2)]
    for p in projected:
        p[:, :64] = torch.randn(n, 64, generator=g) * labelled.float().unsqueeze(1)
    return Signals(
        n,
        gram=grads @ grads.T,
        sketch=grads,
        loss=torch.rand(n, generator=g, dtype=torch.float64) * 3 * labelled,
        entropy=torch.rand(n, generator=g, dtype=torch.float64) * 2 * labelled,
        el2n=torch.rand(n, generator=g, dtype=torch.float64) * labelled,
        tokens=tokens,
        features=torch.randn(n, WIDTH, generator=g),
        features_multi=torch.randn(n, 5, WIDTH, generator=g),
        full_grads=projected[0],
        middle_grads=projected[1],
        image_text_score=None,
        validation_gram=grads @ validation.T,
        task=torch.randint(0, 3, (n,), generator=g),
        answer=torch.randint(0, 5, (n,), generator=g) - 2,
    )


def poison(batch, i, value=float("nan")):
    """Make every floating-point signal of sample `i` equal to `value`, in place."""
    for tensor in vars(batch).values():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor[i] = value
    batch.gram[:, i] = value


def circle(*degrees):
    """[n, 2] float64 unit vectors."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def batch(**fields):
    n = len(next(iter(fields.values())))
    return Signals(n, tokens=torch.ones(n, dtype=torch.int64), **fields)


def order(policy, signals):
    return policy.observe(signals).order.tolist()
