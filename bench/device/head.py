"""head_gram, plain heads of the same tokens, and head_gram over the whole forward."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

import oasis
from bench.device import rivals
from bench.device.bench import Bench
from bench.device.sheet import Row
from bench.device.stack import stack
from bench.timing import show
from oasis.gram.backends.choice import check_float8

FLOPS = "2 T V D bfloat16 flops"


class Case:
    """T label tokens before a head of V rows, and the floors of what runs over them."""

    def __init__(self, bench: Bench, tokens: int, weight: Tensor):
        vocabulary, width = weight.shape
        self.samples = bench.sizes.samples
        options = dict(device=bench.device)
        labels = torch.randint(vocabulary, (tokens,), generator=bench.generator, **options)
        sample = torch.arange(tokens, **options) * self.samples // tokens
        self.problem = bench.randn(tokens, width), weight, labels, sample
        self.shape = f"T={tokens}, D={width}, V={vocabulary} bfloat16"
        self.products = 2 * tokens * vocabulary * width  # flops
        self.gradients = self.samples * vocabulary * width  # numbers
        rate = bench.rate[torch.bfloat16]
        read = bench.over_bandwidth((vocabulary + tokens) * width, torch.bfloat16)
        self.floor = max((self.products + tokens**2 * vocabulary) / rate, read)
        self.plain_floor = max(self.products / rate, read)

    def head_gram(self, method: str = "ghost") -> oasis.HeadGram:
        return oasis.head_gram(*self.problem, num_samples=self.samples, method=method)


def head(bench: Bench, select: float) -> None:
    """All rows of the head; `select` is the seconds of choosing from a Gram matrix."""
    s = bench.sizes
    layers = stack(bench)
    for vocabulary in s.vocabularies:
        weight = bench.randn(vocabulary, s.width) / s.width**0.5
        for tokens in s.tokens:
            case = Case(bench, tokens, weight)
            ours = bench.measure(
                "head_gram", case.shape, case.head_gram, case.floor,
                "2 T V D + T^2 V bfloat16 flops",
            )  # fmt: skip
            cheaper(bench, case, ours)
            plain = other_heads(bench, case, ours)
            if (tokens, vocabulary) == (s.tokens[0], s.vocabularies[0]):
                by_autograd(bench, case, ours)
            overhead(bench, case, ours + select, plain, layers)


def cheaper(bench: Bench, case: Case, ours: float) -> None:
    """Rows of the regimes that are offered and never taken, and how far they are off."""
    for method in ("folded", "float8"):
        shape = f"{method}, {case.shape}"

        def note(method: str = method) -> str:
            off = cosines(case.head_gram(method).gram) - cosines(case.head_gram().gram)
            return f"cosines differ by at most {off.abs().max():.1e}"

        try:
            if method == "float8":
                check_float8(bench.device, torch.bfloat16)
        except ValueError as error:
            bench.add(Row("head_gram", shape, None, case.plain_floor, FLOPS, note=str(error)))
            continue
        run = functools.partial(case.head_gram, method)
        bench.measure("head_gram", shape, run, case.plain_floor, FLOPS, note, ours)


def other_heads(bench: Bench, case: Case, ours: float) -> float:
    """Rows of the forwards that know no Gram matrix; the seconds of the plainest."""
    hidden, weight, labels, _ = case.problem
    floor = case.plain_floor
    plain = bench.measure(
        "other heads", f"logits and cross-entropy, {case.shape}",
        lambda: rivals.plain(hidden, weight, labels), floor, FLOPS, beside=ours,
    )  # fmt: skip
    for rival, function in rivals.found(hidden, weight, labels).items():
        name = f"{rival}, {case.shape}"
        if isinstance(function, str):
            bench.add(Row("other heads", name, None, floor, FLOPS, note=function))
        else:
            bench.measure("other heads", name, function, floor, FLOPS, beside=ours)
    return plain


def by_autograd(bench: Bench, case: Case, ours: float) -> None:
    """The same Gram matrix by way of every sample's gradient, and how far the two differ."""
    kept = {}

    def note() -> str:
        off = cosines(kept["gram"]) - cosines(case.head_gram().gram)
        return f"cosines differ by at most {off.abs().max():.1e}"

    # The logits, the gradients (as many flops again), written once and read once.
    floor = 2 * case.products / bench.rate[torch.bfloat16]
    floor += 2 * bench.over_bandwidth(case.gradients, torch.bfloat16)
    bench.measure(
        "other heads", f"gradient per sample by autograd, then grad_gram, {case.shape}",
        lambda: kept.update(gram=rivals.autograd(*case.problem, case.samples)), floor,
        "4 T V D bfloat16 flops, gradients written and read", note, ours,
    )  # fmt: skip


def cosines(gram: Tensor) -> Tensor:
    norms = gram.diagonal().sqrt()
    return gram / torch.outer(norms, norms)


def overhead(bench: Bench, case: Case, scoring: float, plain: float, layers: float) -> None:
    """What choosing adds to a forward, whose own head over the same tokens it can replace."""
    row = "overhead", f"head_gram + select over the forward, {case.shape}"
    bound = "that of head_gram"
    if not math.isfinite(scoring + plain + layers):
        bench.add(Row(*row, None, case.floor, bound, note="a part of it was not measured"))
        return
    note = (
        f"{100 * scoring / layers:+.2f} % of the layers ({show(layers)}); less the plain head, "
        f"{100 * (scoring - plain) / (layers + plain):+.2f} % of layers and head"
    )
    bench.add(Row(*row, scoring, case.floor, bound, note=note))
