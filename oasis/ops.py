"""Every operator: its schema, its fake (shape) kernel and, but for the output head's
(`oasis.gram.operators`), its implementation per device.

The compiled core takes raw addresses. They are hidden inside opaque `torch.library` operators, so
that tracing and fake tensors never see one. What lies at them is checked at every call
(`oasis.buffers`), what it means by `oasis.gram`, `oasis.siren` and `oasis.selector`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

import torch
from torch import Tensor

from oasis import _core, cuda
from oasis.buffers import CPU, check_one_device, oris_inputs, siren_inputs, state_buffers
from oasis.checks import check_grads

# Not torch.library.custom_op: its first call imports the compiler stack, seconds of it.
_library = torch.library.Library("oasis", "DEF")


def _define(schema: str) -> None:
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def implement(name: str, *keys: str) -> Callable:
    """Registers a function as the implementation of `name` for dispatch keys "CPU", "CUDA"."""

    def register(function: Callable) -> Callable:
        for key in keys:
            _library.impl(name, function, key)
        return function

    return register


def _fake(name: str) -> Callable:
    """Registers a function as the fake kernel of `name`, which torch also takes where one tensor of
    several is on "meta": what it makes then has no numbers, whatever device it says."""

    def register(function: Callable) -> Callable:
        @wraps(function)
        def checked(*arguments, **named):
            check_one_device((*arguments, *named.values()))
            return function(*arguments, **named)

        torch.library.register_fake(f"oasis::{name}", checked, lib=_library)
        return function

    return register


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# --- grad_gram --------------------------------------------------------------------------------


_define("grad_gram(Tensor[] grads) -> Tensor")


@implement("grad_gram", "CPU")
def _(grads: Sequence[Tensor]) -> Tensor:
    """Gram matrix [N, N] (float64) of per-sample gradients, one tensor [N, ...] per parameter."""
    check_grads(grads)
    n = grads[0].shape[0]
    out = torch.zeros(n, n, dtype=torch.float64)
    for g in grads:
        part = _gram_of(g, wide=False)
        if g.dtype != torch.float64 and _outside_float32(g, part.diagonal()):
            part = _gram_of(g, wide=True)
        out += part
    return out


def _gram_of(g: Tensor, wide: bool) -> Tensor:
    part = torch.zeros(g.shape[0], g.shape[0], dtype=torch.float64)
    _core.gram(g.data_ptr(), _dtype_name(g), list(g.shape), list(g.stride()), wide, part.data_ptr())
    return part


def _outside_float32(g: Tensor, squared_norms: Tensor) -> bool:
    """Whether products of finite, non-zero gradients left float32's range (rare, so looked at
    only where a squared norm is suspicious)."""
    suspects = (
        (~squared_norms.isfinite() | (squared_norms < 1e-31 * g[0].numel())).nonzero().squeeze(1)
    )
    largest = (float(g[i].abs().amax()) for i in suspects.tolist())
    return any(0 < value < float("inf") for value in largest)


@_fake("grad_gram")
def _(grads: Sequence[Tensor]) -> Tensor:
    n = grads[0].shape[0]
    return grads[0].new_empty((n, n), dtype=torch.float64)


@implement("grad_gram", "CUDA")
def _(grads: Sequence[Tensor]) -> Tensor:
    check_grads(grads)
    if cuda.BUILT:
        return cuda.grad_gram(grads)
    n = grads[0].shape[0]
    out = grads[0].new_zeros((n, n), dtype=torch.float64)
    for g in grads:
        rows = g.reshape(n, -1)
        # Short float32 products summed in float64, as on the CPU; no TF32 inside.
        for columns in rows.split(1 << 20, dim=1):
            wide = columns.to(torch.promote_types(g.dtype, torch.float32))
            out += (wide @ wide.T).double()
    return out


# --- siren ------------------------------------------------------------------------------------


_define(
    "siren(Tensor gram, Tensor valid, Tensor floor, str method, float ridge, "
    "Tensor? informativeness=None) -> (Tensor, Tensor)"
)


@implement("siren", "CPU")
def _siren(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor,
    method: str,
    ridge: float,
    informativeness: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Adjusted scores [N] and pick order [N] (-1 after the last pick) from a Gram matrix [N, N].

    `informativeness` [N] >= 0 takes the place of its diagonal as a score; cosines stay those of the
    matrix. (Of "residual": informativeness x the share of the gradient outside the picks' span.)
    """
    gram, valid, floor, scores = siren_inputs(gram, valid, floor, informativeness, CPU)
    n = gram.shape[0]
    if scores is not None and method == "residual":
        gram = _with_diagonal(gram, scores)
    adjusted = torch.empty(n, dtype=torch.float64)
    order = torch.empty(n, dtype=torch.int64)
    _core.siren(
        gram.data_ptr(),
        valid.data_ptr(),
        n,
        method,
        ridge,
        float(floor),
        adjusted.data_ptr(),
        order.data_ptr(),
        0 if scores is None else scores.data_ptr(),
    )
    return adjusted, order


def _with_diagonal(gram: Tensor, diagonal: Tensor) -> Tensor:
    """The Gram matrix of the same directions with other squared norms (0 stays 0)."""
    norms = gram.diagonal().sqrt()
    factor = torch.where(norms > 0, diagonal.sqrt() / norms, 0.0)
    scaled = gram * factor * factor.unsqueeze(1)
    return torch.where(torch.eye(len(gram), dtype=torch.bool), diagonal, scaled)


@_fake("siren")
def _(gram, valid, floor, method, ridge, informativeness=None):
    n = gram.shape[0]
    return gram.new_empty(n), gram.new_empty(n, dtype=torch.int64)


@implement("siren", "CUDA")
def _siren_cuda(
    gram: Tensor,
    valid: Tensor,
    floor: Tensor,
    method: str,
    ridge: float,
    informativeness: Tensor | None = None,
):
    plain = informativeness is None  # other measures are ablations: not worth kernels
    fits = method == "exact" or gram.shape[0] <= cuda.MAX_SAMPLES
    if cuda.BUILT and fits and plain:
        return cuda.siren(gram, valid, floor, method, ridge)
    scores = None if plain else informativeness.cpu()
    results = _siren(gram.cpu(), valid.cpu(), floor.cpu(), method, ridge, scores)
    return tuple(r.to(gram.device) for r in results)


# --- oris_ ------------------------------------------------------------------------------------


_define(
    "oris_(Tensor informativeness, Tensor adjusted, Tensor valid, Tensor(a!) statistics, "
    "Tensor(b!) counters, float[] options) -> (Tensor, Tensor, Tensor)"
)


@implement("oris_", "CPU")
def _oris_(informativeness, adjusted, valid, statistics, counters, options):
    """Relative informativeness [N], probability [N] and mask [N]; advances the state in place."""
    inputs = oris_inputs(informativeness, adjusted, valid, CPU)
    statistics, counters = state_buffers(statistics, counters, CPU)
    n = informativeness.shape[0]
    relative, probability = (torch.empty(n, dtype=torch.float64) for _ in range(2))
    mask = torch.empty(n, dtype=torch.bool)
    _core.oris(
        *(t.data_ptr() for t in inputs),
        n,
        statistics.data_ptr(),
        counters.data_ptr(),
        options,
        relative.data_ptr(),
        probability.data_ptr(),
        mask.data_ptr(),
    )
    return relative, probability, mask


@_fake("oris_")
def _(informativeness, adjusted, valid, statistics, counters, options):
    like = informativeness
    return torch.empty_like(like), torch.empty_like(like), torch.empty_like(like, dtype=torch.bool)


@implement("oris_", "CUDA")
def _oris_cuda(informativeness, adjusted, valid, statistics, counters, options):
    if cuda.BUILT:
        return cuda.oris_(informativeness, adjusted, valid, statistics, counters, options)
    state = [t.cpu() for t in state_buffers(statistics, counters, informativeness.device)]
    results = _oris_(informativeness.cpu(), adjusted.cpu(), valid.cpu(), *state, options)
    statistics.copy_(state[0])
    counters.copy_(state[1])
    return tuple(r.to(informativeness.device) for r in results)


# --- oris_stop --------------------------------------------------------------------------------


_define(
    "oris_stop(Tensor informativeness, Tensor valid, Tensor statistics, Tensor counters, "
    "float[] options) -> Tensor"
)


@implement("oris_stop", "CPU", "CUDA")  # of one preset: not worth a kernel
def _(*arguments) -> Tensor:
    """The score at which z of this batch is the threshold; the state is only read."""
    scores, valid, statistics, counters = (t.cpu() for t in arguments[:4])
    scores, _, valid = oris_inputs(scores, scores, valid, CPU)
    state = state_buffers(statistics, counters, CPU)
    addresses = (t.data_ptr() for t in state)
    stop = _core.oris_stop(
        scores.data_ptr(), valid.data_ptr(), len(scores), *addresses, arguments[4]
    )
    return torch.full((), stop, dtype=torch.float64, device=arguments[0].device)


@_fake("oris_stop")
def _(informativeness, valid, statistics, counters, options):
    return informativeness.new_empty((), dtype=torch.float64)


# --- siren_oris_ ------------------------------------------------------------------------------


_define(
    "siren_oris_(Tensor gram, Tensor informativeness, Tensor valid, Tensor floor, str method, "
    "float ridge, Tensor(a!) statistics, Tensor(b!) counters, float[] options) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@implement("siren_oris_", "CPU")
def _(gram, informativeness, valid, floor, method, ridge, statistics, counters, options):
    """From Gram matrix to mask: adjusted and order as `siren`, then what `oris_` returns."""
    adjusted, order = _siren(gram, valid, floor, method, ridge)
    results = _oris_(informativeness, adjusted, valid, statistics, counters, options)
    return adjusted, order, *results


@_fake("siren_oris_")
def _(gram, informativeness, valid, floor, method, ridge, statistics, counters, options):
    n = gram.shape[0]
    types = (torch.float64, torch.int64, torch.float64, torch.float64, torch.bool)
    return tuple(gram.new_empty(n, dtype=dtype) for dtype in types)


@implement("siren_oris_", "CUDA")
def _(gram, informativeness, valid, floor, method, ridge, statistics, counters, options):
    state = statistics, counters
    if cuda.BUILT and gram.shape[0] <= cuda.ONE_LAUNCH:
        return cuda.siren_oris_(gram, informativeness, valid, floor, method, ridge, *state, options)
    adjusted, order = _siren_cuda(gram, valid, floor, method, ridge)
    return adjusted, order, *_oris_cuda(informativeness, adjusted, valid, *state, options)


# --- head_gram --------------------------------------------------------------------------------


_define(
    "head_gram(Tensor hidden, Tensor weight, Tensor labels, Tensor sample, int num_samples, "
    'Tensor? bias, float softcap, float scale, bool mean, str method="ghost", '
    "int sketch_dim=4096, int seed=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _per_sample(like: Tensor, n: int) -> tuple[Tensor, ...]:
    real = [like.new_empty(s, dtype=torch.float64) for s in ((n, n), (n,), (n,), (n,))]
    return *real, *(like.new_empty((n,), dtype=torch.int64) for _ in range(2))


@_fake("head_gram")
def _(hidden, weight, labels, sample, num_samples, *options):
    return _per_sample(hidden, num_samples)


_define(
    "head_partial(Tensor hidden, Tensor weight, Tensor labels, Tensor sample, int num_samples, "
    "Tensor? bias, float softcap, float scale, bool mean, int first) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@_fake("head_partial")
def _(hidden, weight, labels, sample, num_samples, *options):
    context = torch.library.get_ctx()
    tokens, distinct = context.new_dynamic_size(), context.new_dynamic_size()
    work = torch.promote_types(hidden.dtype, torch.float32)
    shapes = (tokens, tokens), (tokens, tokens), (tokens, distinct)
    sums = [hidden.new_empty(shape, dtype=work) for shape in shapes]
    token = hidden.new_empty((7, tokens), dtype=torch.float64)
    return *sums, token, labels.new_empty(tokens), labels.new_empty(num_samples)


_define(
    "head_merge(Tensor[] products, Tensor[] gathers, Tensor[] token, Tensor inner, Tensor labels, "
    "Tensor tokens, float softcap, float scale, bool mean) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@_fake("head_merge")
def _(products, gathers, token, inner, labels, tokens, softcap, scale, mean):
    return _per_sample(inner, tokens.shape[0])


grad_gram = torch.ops.oasis.grad_gram
siren = torch.ops.oasis.siren
oris_ = torch.ops.oasis.oris_
oris_stop = torch.ops.oasis.oris_stop
siren_oris_ = torch.ops.oasis.siren_oris_
head_gram = torch.ops.oasis.head_gram
head_partial = torch.ops.oasis.head_partial
head_merge = torch.ops.oasis.head_merge


_ISA = _core.build_info()["isa"]


def siren_backend(device_type: str) -> str:
    """What runs SIREN and ORIS on `device_type`: asked at every selection, so it stays cheap."""
    if device_type == "cpu":
        return f"C++ ({_ISA})"
    return "CUDA" if cuda.BUILT else f"C++ on the CPU ({_ISA})"
