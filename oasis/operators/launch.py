"""The compiled CUDA kernels behind the operators: outputs and workspace by torch, raw addresses in.

Everything is queued on the tensors' device and torch's current stream there; nothing waits for the
device unless a docstring says so, so a caller may capture it all in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from oasis import _core
from oasis.operators.buffers import (
    Selected,
    address,
    memory_buffer,
    memory_inputs,
    oris_inputs,
    remembered_inputs,
    siren_inputs,
    state_buffers,
    usable_inputs,
)
from oasis.operators.memory import remembered_arguments

BUILT = _core.build_info()["cuda"]
MAX_EXACT = _core.MAX_EXACT
Result = TypeVar("Result")
# Limits of one block: samples that go from Gram matrix to mask in one launch, and of any rule.
ONE_LAUNCH = _core.CUDA_ONE_LAUNCH if BUILT else 0
MAX_SAMPLES = _core.CUDA_MAX_SAMPLES if BUILT else 0
MAX_SKETCH_SAMPLES = _core.CUDA_MAX_SKETCH_SAMPLES if BUILT else 0  # of one launch


@contextmanager
def _queue(device: torch.device) -> Iterator[int]:
    """Makes the device current and yields the handle of its current stream."""
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device).cuda_stream


def _workspace(size: int, device: torch.device) -> dict[str, Any]:
    """Scratch memory of torch's caching allocator, which may be dropped while a stream uses it."""
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    return {"workspace": memory.data_ptr(), "workspace_bytes": size, "_keep": memory}


def _launch(function: Callable[..., Result], arguments: dict[str, Any], stream: int) -> Result:
    return function(**{k: v for k, v in arguments.items() if k != "_keep"}, stream=stream)


def _rows(grads: Tensor) -> Tensor:
    """[N, P] with contiguous rows any distance apart, each the numbers of one sample in some order.

    No product depends on that order, so numbers are taken as they lie in memory: a transposed
    gradient is not copied, only one with gaps inside a sample is.
    """
    inner = sorted(range(1, grads.ndim), key=grads.stride, reverse=True)
    rows = grads.permute(0, *inner).reshape(grads.shape[0], -1)
    return rows if rows.shape[1] == 1 or rows.stride(1) == 1 else rows.contiguous()


def grad_gram(grads: Sequence[Tensor]) -> Tensor:
    """Gram matrix [N, N] (float64); a gradient with gaps inside a sample is copied."""
    n, device = grads[0].shape[0], grads[0].device
    out = torch.empty(n, n, dtype=torch.float64, device=device)
    added = False
    with _queue(device) as stream:
        for g in grads:
            if g.numel() == 0:
                continue
            rows = _rows(g)
            arguments: dict[str, Any] = {
                "data": rows.data_ptr(),
                "dtype": str(rows.dtype).removeprefix("torch."),
                "samples": n,
                "columns": rows.shape[1],
                "row_stride": rows.stride(0),
                "add": added,
                "gram": out.data_ptr(),
                "workspace": 0,
                "workspace_bytes": 0,
                "device": device.index or 0,
            }
            arguments |= _workspace(_core.cuda_gram_workspace(**arguments), device)
            _launch(_core.cuda_gram, arguments, stream)
            added = True
    return out if added else out.zero_()


def usable(
    gram: Tensor,
    valid: Tensor | None,
    scores: Tensor | None,
    sketch: Tensor | None,
    products: bool,
    raises: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gram matrix [N, N] and scores [N] with zeros where a sample is not valid, who is, who is
    skipped, and the code of what is wrong."""
    n, device = gram.shape[0], gram.device
    left = torch.empty(n, n, dtype=torch.float64, device=device)
    informativeness = torch.empty(n, dtype=torch.float64, device=device)
    kept, skipped = (torch.empty(n, dtype=torch.bool, device=device) for _ in range(2))
    wrong = torch.empty((), dtype=torch.int64, device=device)
    arguments = {
        "gram": gram.data_ptr(),
        "given": address(valid),
        "scores": address(scores),
        "sketch": address(sketch),
        "n": n,
        "width": 0 if sketch is None else sketch.shape[1],
        "raises": raises,
        "left": left.data_ptr(),
        "informativeness": informativeness.data_ptr(),
        "valid": kept.data_ptr(),
        "skipped": skipped.data_ptr(),
        "products": products,
        "wrong": wrong.data_ptr(),
        "device": device.index or 0,
    }
    with _queue(device) as stream:
        _launch(_core.cuda_usable, arguments, stream)
    return left, informativeness, kept, skipped, wrong


@cache
def _lowest(device: torch.device) -> Tensor:
    """-inf for kernels that are given no floor: made once, as a graph may be captured later."""
    return torch.full((), -torch.inf, dtype=torch.float64, device=device)


def siren(
    gram: Tensor, valid: Tensor, floor: Tensor | None, method: str, ridge: float
) -> tuple[Tensor, Tensor]:
    """Adjusted scores [N] and order [N].

    "exact" with more than 30 samples of which fewer are valid waits for the device once: their
    number sizes the tables.
    """
    gram, valid, floor, _ = siren_inputs(gram, valid, floor, None, gram.device)
    capacity = n = gram.shape[0]
    if method == "exact" and n > MAX_EXACT:
        capacity = max(int(valid.sum()), 1)
        if capacity > MAX_EXACT:
            text = f"method: 'exact' takes at most {MAX_EXACT} valid samples, got {capacity}"
            raise ValueError(text)
    adjusted = torch.empty(n, dtype=torch.float64, device=gram.device)
    order = torch.empty(n, dtype=torch.int64, device=gram.device)
    arguments: dict[str, Any] = {
        "gram": gram.data_ptr(),
        "valid": valid.data_ptr(),
        "floor": (_lowest(gram.device) if floor is None else floor).data_ptr(),
        "n": n,
        "capacity": capacity,
        "method": method,
        "ridge": ridge,
        "adjusted": adjusted.data_ptr(),
        "order": order.data_ptr(),
        "workspace": 0,
        "workspace_bytes": 0,
        "device": gram.device.index or 0,
    }
    with _queue(gram.device) as stream:
        arguments |= _workspace(_core.cuda_siren_workspace(**arguments), gram.device)
        _launch(_core.cuda_siren, arguments, stream)
    return adjusted, order


def oris_(
    informativeness: Tensor,
    adjusted: Tensor,
    valid: Tensor,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Relative informativeness [N], probability [N], mask [N]; advances the state in place."""
    device = informativeness.device
    informativeness, adjusted, valid = oris_inputs(informativeness, adjusted, valid, device)
    statistics, counters = state_buffers(statistics, counters, device)
    mask = torch.empty_like(informativeness, dtype=torch.bool)
    results = torch.empty_like(informativeness), torch.empty_like(informativeness), mask
    arguments = {
        "informativeness": informativeness.data_ptr(),
        "adjusted": adjusted.data_ptr(),
        "valid": valid.data_ptr(),
        "n": informativeness.shape[0],
        "device": device.index or 0,
        "statistics": statistics.data_ptr(),
        "counters": counters.data_ptr(),
        "options": options,
        **{
            name: result.data_ptr()
            for name, result in zip(("relative", "probability", "mask"), results, strict=True)
        },
    }
    with _queue(device) as stream:
        _launch(_core.cuda_oris, arguments, stream)
    return results


def select_(
    gram: Tensor,
    valid: Tensor | None,
    products: bool,
    raises: bool,
    method: str,
    ridge: float,
    stop: bool,
    statistics: Tensor,
    counters: Tensor,
    options: list[float],
) -> Selected | None:
    """From the Gram matrix of up to ONE_LAUNCH samples to the mask by one kernel; None where the
    device has too little shared memory for it."""
    gram, valid, *_ = usable_inputs(gram, valid, None)
    device = gram.device
    statistics, counters = state_buffers(statistics, counters, device)
    results = Selected.empty(len(gram), device)
    arguments = {
        "gram": gram.data_ptr(),
        "given": address(valid),
        "n": len(gram),
        "products": products,
        "raises": raises,
        "method": method,
        "ridge": ridge,
        "stop": stop,
        "options": options,
        "statistics": statistics.data_ptr(),
        "counters": counters.data_ptr(),
        "device": device.index or 0,
        **results.addresses(),
    }
    with _queue(device) as stream:
        return results if _launch(_core.cuda_select, arguments, stream) else None


def grad_sketch(grads: Sequence[Tensor], dim: int, seed: int, exact: bool) -> Tensor:
    """Sketches [N, dim]; a gradient whose numbers do not lie in their order is copied."""
    n, device, first = grads[0].shape[0], grads[0].device, 0
    out = torch.zeros(n, dim, dtype=torch.float64, device=device)
    with _queue(device) as stream:
        for g in grads:
            rows = g.reshape(n, -1)  # a number's place is its position, so the order counts
            rows = rows if rows.shape[1] == 1 or rows.stride(1) == 1 else rows.contiguous()
            arguments: dict[str, Any] = {
                "data": rows.data_ptr(),
                "dtype": str(rows.dtype).removeprefix("torch."),
                "samples": n,
                "columns": rows.shape[1],
                "row_stride": rows.stride(0),
                "first": first,
                "dim": dim,
                "seed": seed,
                "exact": exact,
                "out": out.data_ptr(),
                "workspace": 0,
                "workspace_bytes": 0,
                "device": device.index or 0,
            }
            arguments |= _workspace(_core.cuda_sketch_workspace(**arguments), device)
            _launch(_core.cuda_sketch, arguments, stream)
            first += rows.shape[1]
    return out


def remembered(
    gram: Tensor, sketch: Tensor, valid: Tensor, memory: Tensor, counters: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Gram matrix [N, N] that the memory [m, S] leaves, and rescaled sketches [N, S]."""
    inputs = remembered_inputs(gram, sketch, valid, memory, counters, ridge)
    arguments, results = remembered_arguments(*inputs, ridge)
    device = inputs[0].device
    arguments |= {"workspace": 0, "workspace_bytes": 0, "device": device.index or 0}
    with _queue(device) as stream:
        arguments |= _workspace(_core.cuda_remembered_workspace(**arguments), device)
        _launch(_core.cuda_remembered, arguments, stream)
    return results


def remember_(sketch: Tensor, mask: Tensor, counters: Tensor, memory: Tensor) -> None:
    """The masked rows of sketch [N, S] into the ring [m, S]."""
    device = memory.device
    sketch, mask, counters = memory_inputs(sketch, mask, counters, device)
    n, width = sketch.shape
    memory = memory_buffer(memory, width, device)
    arguments = {
        "sketch": sketch.data_ptr(),
        "mask": mask.data_ptr(),
        "counters": counters.data_ptr(),
        "n": n,
        "width": width,
        "capacity": memory.shape[0],
        "memory": memory.data_ptr(),
        "device": device.index or 0,
    }
    with _queue(device) as stream:
        _launch(_core.cuda_remember, arguments, stream)
