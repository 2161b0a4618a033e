"""head_gram against per-sample autograd, and against the bare matrix products it needs.

Floors (T tokens): 2 T V D flops for the logits and T^2 V for the symmetric half of the Gram; 101
GFLOP at T = 1024, D = 1024, V = 32000. Bytes (128 MB of weights) do not bind.

Autograd has the choice that head_gram has: bfloat16 is also widened to float32 first, which is the
faster way where the CPU has no bfloat16 products and emulates them. The faster of the two counts.
"""

from __future__ import annotations

import torch

from bench.timing import extra_megabytes, faster, interleaved, median, ratio, table
from oasis import head_gram

SHAPE = dict(samples=16, tokens=64, width=1024, vocabulary=32000)


def inputs(samples, tokens, width, vocabulary, dtype=torch.float32):
    torch.manual_seed(0)
    hidden = torch.randn(samples * tokens, width).to(dtype)
    weight = (torch.randn(vocabulary, width) / width**0.5).to(dtype)
    labels = torch.randint(vocabulary, (samples * tokens,))
    sample = torch.arange(samples).repeat_interleave(tokens)
    return hidden, weight, labels, sample, samples


def ours(hidden, weight, labels, sample, samples):
    return head_gram(hidden, weight, labels, sample, num_samples=samples).gram


def autograd(hidden, weight, labels, sample, samples):
    """One gradient of the head per sample, all kept, then their inner products."""
    weight = weight.detach().requires_grad_()
    grads = weight.new_empty(samples, weight.numel())
    for i in range(samples):
        rows = sample == i
        loss = torch.nn.functional.cross_entropy(hidden[rows] @ weight.T, labels[rows])
        grads[i] = torch.autograd.grad(loss, weight)[0].flatten()
    return grads @ grads.T


def widened(hidden, weight, labels, sample, samples):
    """`autograd` in float32, whatever came."""
    return autograd(hidden.float(), weight.float(), labels, sample, samples)


def products(hidden, weight, labels, sample, samples):
    """The two bare matrix products in one block each; the symmetric one in lower tiles."""
    hidden, weight = hidden.float(), weight.float()
    count = hidden.shape[0]
    gram = hidden.new_zeros(count, count)
    for rows in weight.split(4096):
        block = hidden @ rows.T
        for begin in range(0, count, 256):
            target = gram[begin : begin + 256, : begin + 256]
            torch.addmm(target, block[begin : begin + 256], block[: begin + 256].T, out=target)
    return gram


def memory(function: str, dtype: str) -> float:
    """Extra MiB over holding the inputs."""
    setup = (
        "import torch\nfrom bench import head_gram as b\n"
        f"x = b.inputs(**b.SHAPE, dtype=torch.{dtype})\n"
        "b.ours(*b.inputs(2, 4, 64, 100))\n"
    )
    return extra_megabytes(setup, f"b.{function}(*x)")


def run() -> None:
    rows = []
    for dtype in ("float32", "bfloat16"):
        x = inputs(**SHAPE, dtype=getattr(torch, dtype))
        truth = autograd(*(t.double() if isinstance(t, torch.Tensor) and t.is_floating_point()
                           else t for t in x)) if dtype == "float32" else None  # fmt: skip
        if truth is not None:
            error = (ours(*x) - truth).abs().max() / truth.abs().max()
            assert error < 1e-5, error
        chosen = (ours, autograd, widened, products)
        functions = {f.__name__: (lambda f=f, x=x: f(*x)) for f in chosen}
        times = interleaved(functions, rounds=5)
        rival = faster(times, "autograd", "widened")
        extra = {name: memory(name, dtype) for name in ("ours", rival)}
        rows.append(
            [
                dtype,
                *(median(times[f.__name__]) for f in chosen),
                f"{ratio(times[rival], times['ours']):.2f} x",
                f"{ratio(times['ours'], times['products']):.2f}",
                f"{extra['ours']:,.0f} MiB",
                f"{extra[rival]:,.0f} MiB",
            ]
        )
    header = [
        *("type", "head_gram", "per-sample autograd", "the same in float32"),
        *("bare GEMMs (float32)", "speed-up", "over bare GEMMs", "extra memory", "autograd's"),
    ]
    table("head_gram, N=16 x 64 tokens, D=1024, V=32000", header, rows)
