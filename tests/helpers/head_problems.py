"""Arguments of head_gram, whole and in parts of the vocabulary, and what its results must share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from comparing import assert_relative, cosine_scaled

import oasis
from oasis import reference

METRICS = ("loss", "entropy", "el2n")


def problem(g, *, lengths, d, v, masked=0.2, dtype=torch.float64, sharpness=1.0, shuffle=False):
    """Arguments of head_gram for samples of these lengths, some tokens masked."""
    t = sum(lengths)
    sample = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    labels = torch.randint(0, v, (t,), generator=g)
    labels[torch.rand(t, generator=g) < masked] = -100
    order = torch.randperm(t, generator=g) if shuffle else torch.arange(t)
    return {
        "hidden": torch.randn(t, d, generator=g).to(dtype),
        "weight": (torch.randn(v, d, generator=g) * sharpness * d**-0.5).to(dtype),
        "labels": labels[order],
        "sample": sample[order],
        "num_samples": len(lengths),
    }


def confident(g, *, lengths, d, v, margin, dtype):
    """The same, every label about ``margin`` nats above the rest; each token has its own axis."""
    arguments = problem(g, lengths=lengths, d=d, v=v, masked=0.0)
    hidden, weight = arguments["hidden"], arguments["weight"]
    tokens = torch.arange(len(hidden))
    labels = torch.randperm(v, generator=g)[: len(hidden)]
    hidden[:, : len(tokens)] = margin * torch.eye(len(tokens), dtype=torch.float64)
    weight[:, : len(tokens)] = 0.0
    weight[labels, tokens] = 1.0
    arguments |= {"hidden": hidden.to(dtype), "weight": weight.to(dtype), "labels": labels}
    return arguments


def plain_gram(arguments):
    """What plain torch makes of it at the same precision: autograd, then float64 products."""
    gradients = []
    for i in range(arguments["num_samples"]):
        own = (arguments["sample"] == i) & (arguments["labels"] != -100)
        head = arguments["weight"].clone().requires_grad_()
        if own.any():
            logits = arguments["hidden"][own] @ head.T
            F.cross_entropy(logits, arguments["labels"][own]).backward()
        gradients.append(torch.zeros_like(head) if head.grad is None else head.grad)
    return reference.grad_gram(torch.stack(gradients))


def parts(arguments, *cuts):
    ends = [0, *cuts, len(arguments["weight"])]
    out = []
    for first, last in zip(ends, ends[1:], strict=False):
        own = arguments | {"weight": arguments["weight"][first:last], "vocab_range": (first, last)}
        if arguments.get("bias") is not None:
            own["bias"] = arguments["bias"][first:last]
        out.append(oasis.head_gram(**own))
    return out


def assert_same(got, want, rtol, gram_rtol=None):
    error = cosine_scaled(got.gram - want.gram, want.gram).max()
    assert error <= (gram_rtol or rtol), f"{float(error):.3g}"
    assert torch.equal(got.gram, got.gram.T), "not symmetric to the bit"
    for name in METRICS:
        assert_relative(getattr(got, name), getattr(want, name), rtol)
    assert got.correct.tolist() == want.correct.tolist()
    assert got.tokens.tolist() == want.tokens.tolist()


LOW = [torch.float32, torch.bfloat16, torch.float16]


def assert_like_reference(arguments, rtol=1e-9):
    got, want = oasis.head_gram(**arguments), reference.head_gram(**arguments)
    assert got.gram.dtype == torch.float64
    assert torch.equal(got.gram, got.gram.T), "not symmetric to the bit"
    assert_relative(got.gram.diagonal(), want.gram.diagonal(), rtol)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() <= rtol
    for name in METRICS:
        assert_relative(getattr(got, name), getattr(want, name), rtol)
    assert got.tokens.dtype == torch.int64
    assert got.tokens.tolist() == want.tokens.tolist()
    assert got.correct.tolist() == want.correct.tolist()
    if arguments.get("reduction") != "sum":
        assert_relative(got.perplexity, want.perplexity, 10 * rtol)
    return got
