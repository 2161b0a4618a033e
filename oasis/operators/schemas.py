"""Every operator's schema, and what it gives for fake tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oasis.operators.buffers import Selected
from oasis.operators.library import define, fake

define("grad_gram(Tensor[] grads) -> Tensor")


@fake("grad_gram")
def _(grads: Sequence[Tensor]) -> Tensor:
    n = grads[0].shape[0]
    return grads[0].new_empty((n, n), dtype=torch.float64)


define("grad_sketch(Tensor[] grads, int dim, int seed) -> Tensor")


@fake("grad_sketch")
def _(grads: Sequence[Tensor], dim: int, seed: int) -> Tensor:
    return grads[0].new_empty((grads[0].shape[0], dim), dtype=torch.float64)


define(
    "remembered(Tensor gram, Tensor sketch, Tensor valid, Tensor memory, Tensor counters, "
    "float ridge) -> (Tensor, Tensor)"
)


@fake("remembered")
def _(
    gram: Tensor, sketch: Tensor, valid: Tensor, memory: Tensor, counters: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    return gram.new_empty(gram.shape), sketch.new_empty(sketch.shape)  # whatever their strides


define("remember_(Tensor sketch, Tensor mask, Tensor counters, Tensor(a!) memory) -> ()")


@fake("remember_")
def _(sketch: Tensor, mask: Tensor, counters: Tensor, memory: Tensor) -> None:
    return None


define("inner_products(Tensor gram, Tensor? valid) -> (Tensor, Tensor)")


@fake("inner_products")
def _(gram: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    n = gram.shape[0]
    return gram.new_empty((n, n), dtype=torch.float64), gram.new_empty(n, dtype=torch.bool)


define(
    "usable(Tensor gram, Tensor? valid, Tensor? scores, Tensor? sketch, str source, bool raises) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@fake("usable")
def _(
    gram: Tensor,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    source: str,
    raises: bool,
) -> tuple[Tensor, ...]:
    n = gram.shape[0]
    real = [gram.new_empty(shape, dtype=torch.float64) for shape in ((n, n), (n,))]
    known = [gram.new_empty(n, dtype=torch.bool) for _ in range(2)]
    return *real, *known, gram.new_empty((), dtype=torch.int64)


define(
    "siren(Tensor gram, Tensor valid, Tensor? floor, str method, float ridge, "
    "Tensor? informativeness=None) -> (Tensor, Tensor)"
)


@fake("siren")
def _(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor | None,
    method: str,
    ridge: float,
    informativeness: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    n = gram.shape[0]
    return gram.new_empty(n), gram.new_empty(n, dtype=torch.int64)


define(
    "oris_(Tensor informativeness, Tensor adjusted, Tensor valid, Tensor(a!) statistics, "
    "Tensor(b!) counters, float[] options) -> (Tensor, Tensor, Tensor)"
)


@fake("oris_")
def _(
    informativeness: Tensor,
    adjusted: Tensor,
    valid: Tensor,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    like = informativeness
    return torch.empty_like(like), torch.empty_like(like), torch.empty_like(like, dtype=torch.bool)


define(
    "oris_stop(Tensor informativeness, Tensor valid, Tensor statistics, Tensor counters, "
    "float[] options) -> Tensor"
)


@fake("oris_stop")
def _(
    informativeness: Tensor,
    valid: Tensor,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> Tensor:
    return informativeness.new_empty((), dtype=torch.float64)


define(
    "select_(Tensor gram, Tensor? valid, Tensor? scores, str source, bool raises, str method, "
    "float ridge, bool stop, Tensor(a!) statistics, Tensor(b!) counters, float[] options) "
    f"-> ({', '.join('Tensor' for _ in Selected._fields)})"
)


@fake("select_")
def _(gram: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return Selected.empty(gram.shape[0], gram.device)


define(
    "head_gram(Tensor hidden, Tensor weight, Tensor labels, Tensor sample, int num_samples, "
    'Tensor? bias, float softcap, float scale, bool mean, str method="ghost", '
    "int sketch_dim=4096, int seed=0, int sketch=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _per_sample(like: Tensor, n: int, sketch: int) -> tuple[Tensor, ...]:
    real = [like.new_empty(s, dtype=torch.float64) for s in ((n, n), (n,), (n,), (n,))]
    counts = (like.new_empty((n,), dtype=torch.int64) for _ in range(2))
    return *real, *counts, like.new_empty((n, sketch), dtype=torch.float64)


@fake("head_gram")
def _(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float,
    scale: float,
    mean: bool,
    method: str = "ghost",
    sketch_dim: int = 4096,
    seed: int = 0,
    sketch: int = 0,
) -> tuple[Tensor, ...]:
    return _per_sample(hidden, num_samples, sketch)


define(
    "head_partial(Tensor hidden, Tensor weight, Tensor labels, Tensor sample, int num_samples, "
    "Tensor? bias, float softcap, float scale, bool mean, int first, int seed=0, int sketch=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@fake("head_partial")
def _(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    num_samples: int,
    bias: Tensor | None,
    softcap: float,
    scale: float,
    mean: bool,
    first: int,
    seed: int = 0,
    sketch: int = 0,
) -> tuple[Tensor, ...]:
    context = torch.library.get_ctx()
    tokens, distinct = context.new_dynamic_size(), context.new_dynamic_size()
    work = torch.promote_types(hidden.dtype, torch.float32)
    shapes = (tokens, tokens), (tokens, tokens), (tokens, distinct)
    sums = [hidden.new_empty(shape, dtype=work) for shape in shapes]
    token = hidden.new_empty((7, tokens), dtype=torch.float64)
    sketches = [hidden.new_empty((tokens, sketch), dtype=work) for _ in range(2)]
    return *sums, token, *sketches, labels.new_empty(tokens), labels.new_empty(num_samples)


define(
    "head_merge(Tensor[] products, Tensor[] gathers, Tensor[] token, Tensor[] deltas, "
    "Tensor inner, Tensor hidden, Tensor labels, Tensor tokens, float softcap, float scale, "
    "bool mean, int seed=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@fake("head_merge")
def _(
    products: Sequence[Tensor],
    gathers: Sequence[Tensor],
    token: Sequence[Tensor],
    deltas: Sequence[Tensor],
    inner: Tensor,
    hidden: Tensor,
    labels: Tensor,
    tokens: Tensor,
    *options: Any,
) -> tuple[Tensor, ...]:
    return _per_sample(inner, tokens.shape[0], hidden.shape[1])
