"""The "ghost" visit of the vocabulary with the Triton kernels (`oasis.kernels.triton`)."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.gram.algebra import add_lower_products
from oasis.gram.backends.choice import epilogue_type
from oasis.gram.backends.epilogue import TiledEpilogue
from oasis.gram.problem import Problem


def _mixed(h: Tensor) -> bool:
    """Whether torch multiplies low precision into float32 as it is (CUDA, torch 2.8 and newer)."""
    low = h.dtype in (torch.bfloat16, torch.float16)
    return low and h.device.type == "cuda" and hasattr(torch.ops.aten.mm, "dtype")


def _multiply(a: Tensor, b: Tensor, buffer: Tensor) -> Tensor:
    """a b^T in float32, sums in float32 or wider; lies in the buffer unless mixed."""
    if _mixed(a):
        return torch.mm(a, b.T, out_dtype=torch.float32)
    out = buffer[: a.shape[0] * b.shape[0]].view(a.shape[0], -1)
    return torch.mm(a.float(), b.T.float(), out=out)


def visit(problem: Problem) -> tuple[TiledEpilogue, Tensor, Tensor]:
    """The epilogue after the last block, sums of E E^T, and h h^T (lower halves)."""
    # Of the type that Triton reads, not of the widened one.
    epilogue_class = epilogue_type("triton")
    weight = problem.weight
    h = problem.hidden.to(weight.dtype)  # exact: it was widened from that type
    distinct, index = torch.unique(problem.labels, sorted=True, return_inverse=True)
    head = problem.bias, problem.scale, problem.softcap
    epilogue = epilogue_class(
        problem.labels, index, distinct, *head, weight.dtype, problem.asked_sketches()
    )
    count, vocabulary = h.shape[0], weight.shape[0]
    block = min(epilogue.vocabulary_block(), vocabulary)
    products = problem.hidden.new_zeros((epilogue.side, epilogue.side))
    buffer = problem.hidden.new_empty(0 if _mixed(h) else count * block)
    for first in range(0, vocabulary, block):
        logits = _multiply(h, weight[first : first + block], buffer)
        epilogue.block(logits, first, products)
        epilogue.add_products(products, logits)
        del logits  # before the next block takes memory
    inner = problem.hidden.new_zeros((count, count))
    if h.dtype == torch.float32:
        add_lower_products(inner, h)
    else:
        inner = _multiply(h, h, inner.view(-1))
    return epilogue, products, inner
