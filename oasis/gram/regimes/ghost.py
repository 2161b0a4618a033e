"""`head_gram` by products of tokens ("ghost"): one pass, 2 T V D + T^2 V flops (method 1.2).

Exact, and cheapest while the label tokens T are fewer than about 4 D. Parts of the vocabulary can
be visited apart and merged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oasis.gram.algebra import add_lower_products, mixed, offsets
from oasis.gram.backends.epilogue import FIELDS, Epilogue
from oasis.gram.problem import Problem


def visit(problem: Problem) -> tuple[Epilogue, Tensor, Tensor]:
    """The epilogue after the last block, sums of E E^T, and h h^T (lower halves)."""
    count = problem.hidden.shape[0]
    epilogue = problem.epilogue(sketches=problem.asked_sketches())
    products, inner = (problem.zeros(count, count) for _ in range(2))
    # E of half types is no better than they are. It lies in [0, 1], where float16 is the finer one.
    entries = torch.float16 if mixed(problem.hidden) else problem.work
    for first, logits in problem.blocks(problem.hidden, problem.block_size(count)):
        epilogue.block(logits, first, products)
        add_lower_products(products, logits.to(entries))
    add_lower_products(inner, problem.hidden)
    return epilogue, products, inner


def whole(problem: Problem) -> tuple[Tensor, ...]:
    """The operator's outputs."""
    epilogue, products, inner = visit(problem)
    return finish(problem, epilogue, products, inner, *problem.sketches(epilogue.sketched()))


def finish(
    problem: Problem,
    epilogue: Epilogue,
    products: Tensor,
    inner: Tensor,
    deltas: Tensor,
    hidden: Tensor,
) -> tuple[Tensor, ...]:
    """The operator's outputs from a visit of the whole vocabulary."""
    r = problem.results(epilogue.token)
    gram = epilogue.reduce(
        products,
        inner,
        offsets(problem.tokens),
        r.coefficient * r.entry_share,
        r.coefficient * r.label_share,
    )
    return problem.outputs(gram, r.metrics, problem.sample_sketches(deltas, hidden, r))


def partial(problem: Problem) -> tuple[Tensor, ...]:
    """(products, inner, gathers, token [7, T], sketches of E and of h [T, m]) of a part of the
    vocabulary."""
    epilogue, products, inner = visit(problem)
    token = torch.stack([epilogue.token[f] for f in FIELDS])
    return products, inner, epilogue.gathers, token, *problem.sketches(epilogue.sketched())


@dataclass(frozen=True)
class Part:
    """What is left of a part of the vocabulary."""

    products: Tensor  # [T, T]
    gathers: Tensor  # [T, L]
    token: Tensor  # [7, T]
    deltas: Tensor  # [T, m]


def merge(problem: Problem, parts: list[Part], inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    """The whole from its disjoint parts, h h^T and the sketches [T, m] of h: an online softmax.

    E of every part was taken against its own largest entry; each shrinks by exp(own - common
    `entry_peak`), on both sides of the products, and its sums by exp(own - common `peak`).
    """
    states = [dict(zip(FIELDS, part.token, strict=True)) for part in parts]
    common = {
        f: torch.stack([s[f] for s in states]).amax(0) for f in ("peak", "entry_peak", "maximum")
    }
    epilogue = problem.epilogue()
    total = {f: torch.zeros_like(common["peak"]) for f in FIELDS} | common
    products, gathers = torch.zeros_like(parts[0].products), torch.zeros_like(parts[0].gathers)
    deltas = torch.zeros_like(parts[0].deltas)
    for part, s in zip(parts, states, strict=True):
        grown, factor = _shrink(s["peak"], common["peak"])
        total["sum"] += factor * s["sum"]
        total["weighted"] += factor * (s["weighted"] + grown * s["sum"])
        total["squares"] += factor.square() * s["squares"]
        total["label_logit"] += s["label_logit"]  # zero but in the part that holds the label
        narrow = _shrink(s["entry_peak"], common["entry_peak"])[1].to(products.dtype).unsqueeze(1)
        products += part.products * narrow * narrow.T
        gathers += part.gathers * narrow
        deltas += part.deltas * narrow
    epilogue.gathers = gathers
    epilogue.token |= total
    return finish(problem, epilogue, products, inner, deltas, hidden)


def _shrink(own: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
    """common - own maximum and exp(own - common), 0 and 0 where nothing was seen yet."""
    grown = torch.where(own.isneginf(), 0.0, common - own)
    return grown, torch.where(own.isneginf(), 0.0, (-grown).exp())
