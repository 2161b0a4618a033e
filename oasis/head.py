"""`head_gram` in one pass over the vocabulary (docs/method.md 1.1 and 1.2): the loop over blocks.

Matrix products are torch's. What lies between them is the compiled epilogue on the CPU, Triton
(`oasis.kernels.triton`) or plain torch (`oasis.head_torch`) on a GPU: see `oasis.head_backend`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import _core, head_backend, head_torch

_BLOCK_ELEMENTS = 4 << 20  # numbers in one block of logits (16 MiB in float32)
_TILE = 256  # rows of the symmetric products computed at once; only the lower half is


class _Compiled:
    """The epilogue of `csrc/cpu/head.cpp`. `token` holds the per-token state, see `HeadBlock`."""

    fields = ("peak", "maximum", "label_logit", "sum", "weighted", "squares", "factor")

    def __init__(self, labels, label_index, distinct, bias, scale, softcap, dtype):
        tokens = labels.numel()
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        self.float64 = dtype == torch.float64
        self.token = {f: torch.zeros(tokens, dtype=torch.float64) for f in self.fields}
        for f in ("peak", "maximum"):
            self.token[f].fill_(-torch.inf)
        self.gathers = torch.zeros(tokens, distinct.numel(), dtype=dtype)
        self.sorted_labels = distinct.tolist()

    def block(self, logits: Tensor, first: int, products: Tensor) -> None:
        tokens, columns = logits.shape
        inside = [
            (i, y - first) for i, y in enumerate(self.sorted_labels) if first <= y < first + columns
        ]
        label_columns = torch.tensor([column for _, column in inside], dtype=torch.int64)
        bias = None if self.bias is None else self.bias[first : first + columns]
        _core.head_block(
            self.float64,
            logits=logits.data_ptr(),
            tokens=tokens,
            columns=columns,
            row_stride=logits.stride(0),
            first=first,
            bias=0 if bias is None else bias.data_ptr(),
            scale=self.scale,
            softcap=self.softcap,
            labels=self.labels.data_ptr(),
            label_columns=label_columns.data_ptr(),
            label_count=len(inside),
            label_first=inside[0][0] if inside else 0,
            gathers=self.gathers.data_ptr(),
            distinct=self.distinct.numel(),
            **{f: t.data_ptr() for f, t in self.token.items()},
        )
        if first:
            _core.head_rescale(
                products.data_ptr(),
                self.gathers.data_ptr(),
                self.token["factor"].data_ptr(),
                tokens,
                self.distinct.numel(),
                self.float64,
            )

    def reduce(self, products, inner, offsets, tilt, label) -> Tensor:
        n = offsets.numel() - 1
        gram = torch.empty(n, n, dtype=torch.float64)
        _core.head_reduce(
            self.float64,
            products=products.data_ptr(),
            inner=inner.data_ptr(),
            gathers=self.gathers.data_ptr(),
            label_index=self.label_index.data_ptr(),
            tokens=self.labels.numel(),
            distinct=self.distinct.numel(),
            offsets=offsets.data_ptr(),
            samples=n,
            tilt=tilt.data_ptr(),
            label=label.data_ptr(),
            gram=gram.data_ptr(),
        )
        return gram


def _add_lower_products(out: Tensor, rows: Tensor) -> None:
    """out += rows rows^T, in tiles; the strict upper half of off-diagonal tiles is left alone."""
    for begin in range(0, rows.shape[0], _TILE):
        end = min(begin + _TILE, rows.shape[0])
        target = out[begin:end, :end]
        torch.addmm(target, rows[begin:end], rows[:end].T, out=target)


def _mixed(h: Tensor) -> bool:
    """Whether torch multiplies low precision into float32 as it is (CUDA, torch 2.8 and newer)."""
    low = h.dtype in (torch.bfloat16, torch.float16)
    return low and h.device.type == "cuda" and hasattr(torch.ops.aten.mm, "dtype")


def _multiply(a: Tensor, b: Tensor, buffer: Tensor) -> Tensor:
    """a b^T in the type of `buffer`, sums in float32 or wider; lies in the buffer unless mixed."""
    if _mixed(a):
        return torch.mm(a, b.T, out_dtype=buffer.dtype)
    out = buffer[: a.shape[0] * b.shape[0]].view(a.shape[0], -1)
    return torch.mm(a.to(out.dtype), b.T.to(out.dtype), out=out)


def _epilogue(hidden: Tensor, work: torch.dtype, *arguments):
    name, _ = head_backend.choose(hidden.device, hidden.dtype)
    if name == "triton":
        from oasis.kernels.triton.head import Epilogue  # optional, and slow to import

        return Epilogue(*arguments, hidden.dtype)
    return (_Compiled if name == "compiled" else head_torch.Epilogue)(*arguments, work)


def head_gram_blocks(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float,
    scale: float,
    mean: bool,
) -> tuple[Tensor, ...]:
    """The operator behind `oasis.head_gram`; `softcap` 0 means none."""
    device = hidden.device
    labelled = (labels != -100).nonzero().squeeze(1)
    owner = sample[labelled]
    # Tokens of one sample side by side: each entry of the result is then one rectangle.
    by_sample = torch.argsort(owner, stable=True)
    index, owner = labelled[by_sample], owner[by_sample]
    tokens = torch.bincount(owner, minlength=num_samples)
    count = index.numel()
    if count == 0:
        zeros = [hidden.new_zeros(num_samples, dtype=torch.float64) for _ in range(3)]
        gram = hidden.new_zeros((num_samples, num_samples), dtype=torch.float64)
        return gram, *zeros, torch.zeros_like(tokens), tokens

    work = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    h = hidden[index]
    y = labels[index].contiguous()
    distinct, label_index = torch.unique(y, sorted=True, return_inverse=True)
    bias = None if bias is None else bias.to(work).contiguous()
    epilogue = _epilogue(hidden, work, y, label_index, distinct, bias, scale, softcap)
    native = getattr(epilogue, "native", False)  # takes h and W as they are
    add_products = getattr(epilogue, "add_products", _add_lower_products)

    vocabulary, width = weight.shape
    side = count
    if native:
        block, side = epilogue.vocabulary_block(), epilogue.side
    else:
        h = h.to(work)
        block = max(256, _BLOCK_ELEMENTS // max(count, width if weight.dtype != work else 1))
    block = min(block, vocabulary)
    products = h.new_zeros((side, side), dtype=work)
    buffer = h.new_empty(0 if _mixed(h) else count * block, dtype=work)
    widened = None if native or weight.dtype == work else h.new_empty((block, width))
    for first in range(0, vocabulary, block):
        rows = weight[first : first + block]
        if widened is not None:
            rows = widened[: rows.shape[0]].copy_(rows)
        logits = _multiply(h, rows, buffer)
        epilogue.block(logits, first, products)
        add_products(products, logits)
        del logits  # before the next block takes memory

    inner = h.new_zeros((count, count), dtype=work)
    if h.dtype == work:
        _add_lower_products(inner, h)
    else:
        inner = _multiply(h, h, inner.view(-1))

    token = epilogue.token
    # Everything relative to the label's logit, so that a confident token keeps its small numbers.
    lead = token["peak"] - token["label_logit"]
    off_label = torch.where(token["sum"] == 0, -torch.inf, token["sum"].log() + lead)
    loss = torch.logaddexp(torch.zeros_like(off_label), off_label)
    ratio = torch.where(token["sum"] == 0, 0.0, (lead - loss).exp())  # exp(peak - log-sum-exp)
    q = token["sum"] * ratio
    above = torch.where(token["sum"] == 0, 0.0, loss - lead)  # log-sum-exp - peak
    entropy = (-loss).exp() * loss + ratio * (above * token["sum"] + token["weighted"])
    el2n = (ratio.square() * token["squares"] + q.square()).sqrt()
    correct = token["label_logit"] > token["maximum"]

    share = (1 / tokens.double())[owner] if mean else torch.ones_like(loss)
    chain = scale * (1 - (token["label_logit"] / softcap).square()) if softcap else scale
    offsets = torch.zeros(num_samples + 1, dtype=torch.int64, device=device)
    torch.cumsum(tokens, 0, out=offsets[1:])
    gram = epilogue.reduce(products, inner, offsets, share * scale * ratio, share * q * chain)

    # Tokens of a sample are neighbours: a sum per segment, in the same order on every device.
    def per_sample(values: Tensor) -> Tensor:
        return torch.segment_reduce(values, "sum", lengths=tokens, initial=0, unsafe=True)

    means = (per_sample(share * values) for values in (loss, entropy, el2n))
    return gram, *means, per_sample(correct.double()).long(), tokens
