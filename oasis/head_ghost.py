"""`head_gram` by products of tokens ("ghost"): one pass, 2 T V D + T^2 V flops (method 1.2).

Exact, and cheapest while the label tokens T are fewer than about 4 D. Parts of the vocabulary can
be visited apart and merged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.head_problem import Problem, add_lower_products, offsets

FIELDS = ("peak", "maximum", "label_logit", "sum", "weighted", "squares")


def visit(problem: Problem):
    """The epilogue after the last block, sums of E E^T, and h h^T (lower halves)."""
    count = problem.hidden.shape[0]
    epilogue = problem.epilogue()
    products, inner = (problem.hidden.new_zeros((count, count)) for _ in range(2))
    for first, logits in problem.blocks(problem.hidden, problem.block_size(count)):
        epilogue.block(logits, first, products)
        add_lower_products(products, logits)
    add_lower_products(inner, problem.hidden)
    return epilogue, products, inner


def finish(problem: Problem, epilogue, products: Tensor, inner: Tensor) -> tuple[Tensor, ...]:
    """The operator's outputs from a visit of the whole vocabulary."""
    r = problem.results(epilogue.token)
    gram = epilogue.reduce(products, inner, offsets(problem.tokens), r.tilt, r.label)
    return problem.outputs(gram, r.metrics)


def partial(problem: Problem) -> tuple[Tensor, ...]:
    """(products, inner, gathers, token [6, T]) of a part of the vocabulary."""
    epilogue, products, inner = visit(problem)
    token = torch.stack([epilogue.token[f] for f in FIELDS])
    return products, inner, epilogue.gathers, token


def merge(problem: Problem, parts: list[tuple[Tensor, Tensor, Tensor]], inner: Tensor):
    """The whole from the (products, gathers, token) of its disjoint parts: an online softmax.

    E of every part was taken against its own peak; each shrinks by exp(own - common peak), on both
    sides of the products.
    """
    states = [dict(zip(FIELDS, token, strict=True)) for _, _, token in parts]
    peak = torch.stack([s["peak"] for s in states]).amax(0)
    epilogue = problem.epilogue()
    total = {f: torch.zeros_like(peak) for f in FIELDS}
    total |= {"peak": peak, "maximum": torch.stack([s["maximum"] for s in states]).amax(0)}
    products, gathers = torch.zeros_like(parts[0][0]), torch.zeros_like(parts[0][1])
    for (part, at_labels, _), s in zip(parts, states, strict=True):
        grown = torch.where(s["peak"].isneginf(), 0.0, peak - s["peak"])
        factor = torch.where(s["peak"].isneginf(), 0.0, (-grown).exp())
        total["sum"] += factor * s["sum"]
        total["weighted"] += factor * (s["weighted"] + grown * s["sum"])
        total["squares"] += factor.square() * s["squares"]
        total["label_logit"] += s["label_logit"]  # zero but in the part that holds the label
        narrow = factor.to(part.dtype).unsqueeze(1)
        products += part * narrow * narrow.T
        gathers += at_labels * narrow
    epilogue.gathers = gathers
    epilogue.token |= total
    return finish(problem, epilogue, products, inner)
