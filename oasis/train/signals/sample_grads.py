"""Per-sample gradients of the trained weights from one batched backward pass.

A linear layer's gradient is a sum over tokens of outer products of what it is given and the
gradient of what it gives. Hooks on the LoRA matrices (and any other trained linear layer) form
that sum sample by sample. Of all weights or many, a count sketch is made of it at once: no [N, all
weights] matrix exists. Of a single block the gradients are kept, for their exact Gram matrix.
Weights that are used in any other way fall back to one backward pass per sample.

Under FSDP2 (`fully_shard`) a weight is a shard outside of its layer's forward; what the gradient is
of is the whole weight inside, which the hooks see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

import oasis
from oasis.train.signals.sketch import SIZE, CountSketch

TOLERANCE = 1e-2  # of a weight's gradient: what the hooks sum up against autograd's, bfloat16 too
USE_HEAD = "score by the output head (layer='head', a policy without full_grads or middle_grads)"

NO_GRADIENT = (
    "model: got no gradient of any trained weight from a forward in eval mode, expected some (is "
    f"the forward run without gradients, or around the trained weights?); {USE_HEAD}"
)


def check_sharding(model: nn.Module) -> bool:
    """Whether the weights of `model` are sharded by FSDP2.

    Raises:
        ValueError: they are sharded in another way, in which nobody sees whole gradients.
    """
    kinds = {cls.__name__ for module in model.modules() for cls in type(module).__mro__}
    if "FullyShardedDataParallel" in kinds:
        kind, instead = "FSDP1 (FullyShardedDataParallel)", "FSDP2 (fsdp_config: version: 2), DDP"
    elif any(hasattr(p, "ds_id") for p in model.parameters()):
        kind, instead = "DeepSpeed ZeRO-3", "ZeRO-2, FSDP2, DDP"
    else:
        return "FSDPModule" in kinds
    raise ValueError(
        f"model: got weights sharded by {kind}, which shows no gradient of a single sample; use "
        f"{instead}, or {USE_HEAD}"
    )


class _Sum(Protocol):
    """What is made of the gradients, piece by piece."""

    def add(self, name: str, start: int, values: Tensor, rows: slice) -> None:
        """Account for gradients [rows, ...] of a weight whose place in the long vector is known."""


S = TypeVar("S", bound=_Sum)


class _Sketches:
    """The sum of the sketches [N, size] of the pieces that come."""

    def __init__(self, sketch: CountSketch, losses: Tensor) -> None:
        self.sketch = sketch
        self.total = losses.new_zeros(len(losses), sketch.size)

    def add(self, name: str, start: int, values: Tensor, rows: slice) -> None:
        self.total[rows] += self.sketch(values, start)


class _Kept:
    """The gradients themselves, [N, P] for each weight."""

    def __init__(self, losses: Tensor) -> None:
        self.count = len(losses)
        self.by_weight: dict[str, Tensor] = {}

    def add(self, name: str, start: int, values: Tensor, rows: slice) -> None:
        if name not in self.by_weight:
            self.by_weight[name] = values.new_zeros(self.count, values.shape[1])
        self.by_weight[name][rows] += values


class SampleGradients:
    """Gradients of N losses with respect to weights of a model: sketches [N, size], or the Gram
    matrix.

    Whether the hooks account for all of a weight's gradient is found out with the first batch that
    gives it one: the sum over the samples is compared with what autograd says. Weights that are
    also used outside of their layer, and those of other layers, are done by the loop.

    Args:
        size, seed: of the count sketch.
    """

    def __init__(self, size: int = SIZE, seed: int = 0) -> None:
        self.sketch = CountSketch(size, seed)
        self._right: set[str] = set()  # weights that the hooks are known to get right
        self._wrong: set[str] = set()
        self._trained: dict[str, nn.Parameter] = {}
        self._used: dict[str, Tensor] = {}  # the same as their layers' forward had them: whole
        self._sharded = False
        self._starts: dict[str, int] = {}  # position of each weight in the long vector
        self._hooked: set[str] = set()
        self._wanted: dict[str, set[str]] | None = None  # while a backward pass is listened to
        self._count = 0
        self._out: Mapping[str, _Sum] = {}
        self._sums: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def watch(self, model: nn.Module, shape: tuple[int, int]) -> Iterator[None]:
        """While open, a forward of `model` on `shape` = (N, L) positions is seen by the hooks.

        Raises:
            ValueError: no weight of the model is trained, or see `check_sharding`.
        """
        self._sharded = check_sharding(model)
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._trained:
            raise ValueError("model: got no trainable weight, expected some to take gradients of")
        start = 0
        for name, parameter in self._trained.items():
            self._starts[name] = start
            start += parameter.numel()
        names = {id(p): name for name, p in self._trained.items()}
        self._hooked, self._used, handles = set(), {}, []
        for module in model.modules():
            if not isinstance(module, nn.Linear):
                continue
            own = {
                kind: names[id(p)]
                for kind, p in module.named_parameters(recurse=False)
                if kind in ("weight", "bias") and names.get(id(p), "") not in {"", *self._wrong}
            }
            if own:
                self._hooked.update(own.values())
                handles.append(module.register_forward_hook(self._hook(own, shape)))
        try:
            yield
        finally:
            self._used = {}
            for handle in handles:
                handle.remove()

    def _hook(self, own: dict[str, str], shape: tuple[int, int]):
        def forward(module: nn.Module, args: tuple, output: Tensor) -> None:
            given = args[0].detach()
            self._used.update({name: getattr(module, kind) for kind, name in own.items()})
            if given.ndim != 3 or given.shape[:2] != shape:
                self._hooked.difference_update(own.values())  # it does not see whole rows
            elif output.requires_grad:
                output.register_hook(lambda grad: self._listen(own, given, grad))

        return forward

    def _listen(self, own: dict[str, str], given: Tensor, grad: Tensor) -> None:
        """One use of a layer in the backward pass: given [N, L, in], gradient [N, L, out]."""
        if self._wanted is None:
            return
        wanted = set().union(*self._wanted.values())
        wide = torch.promote_types(grad.dtype, torch.float32)
        rows = slice(self._count)  # those below have no loss
        for kind, name in own.items():
            if name in self._hooked and name in wanted:
                values = grad[rows].to(wide)
                if kind == "weight":
                    values = values.transpose(1, 2) @ given[rows].to(wide)  # [N, out, in]
                else:
                    values = values.sum(dim=1)
                if name not in self._right:
                    self._sums[name] = self._sums.get(name, 0) + values.sum(dim=0)
                self._add(self._wanted, name, values.flatten(1), rows)

    def _add(self, wanted: dict[str, set[str]], name: str, values: Tensor, rows: slice) -> None:
        for group, names in wanted.items():
            if name in names:
                self._out[group].add(name, self._starts[name], values, rows)

    def sketches(
        self, losses: Tensor, groups: Mapping[str, Sequence[nn.Parameter]]
    ) -> dict[str, Tensor]:
        """Sketch [N, size] float32 of the gradients with respect to each group of parameters.

        `losses` [N] are those of the first N rows of a forward under `watch`; each depends on its
        own row alone. The groups are the model's parameters as they were before that forward; those
        that are not trained are left out. No `.grad` is touched.

        Raises:
            ValueError: sharded weights that the hooks cannot see.
        """
        sums = self._run(losses, groups, lambda: _Sketches(self.sketch, losses))
        return {group: out.total.float() for group, out in sums.items()}

    def gram(
        self, losses: Tensor, parameters: Sequence[nn.Parameter], sketch: int = 0
    ) -> tuple[Tensor, Tensor]:
        """[N, N] float64, the inner products of the gradients with respect to `parameters`, exact,
        and sketches [N, `sketch`] float64 of them, which compare samples of different batches.

        As `sketches`, but N gradients of all of `parameters` are held at a time.
        """
        kept = self._run(losses, {"": parameters}, lambda: _Kept(losses))[""].by_weight
        rows = losses.new_zeros(len(losses), sketch, dtype=torch.float64)
        if not kept:  # no row has a label
            return losses.new_zeros(len(losses), len(losses), dtype=torch.float64), rows
        if sketch:
            count_sketch = CountSketch(sketch, self.sketch.seed)
            for name, values in kept.items():
                rows += count_sketch(values, self._starts[name])
        return oasis.grad_gram(list(kept.values())), rows

    def _run(
        self,
        losses: Tensor,
        groups: Mapping[str, Sequence[nn.Parameter]],
        make: Callable[[], S],
    ) -> dict[str, S]:
        names = {id(p): name for name, p in self._trained.items()}
        wanted = {g: {names[id(p)] for p in ps if p.requires_grad} for g, ps in groups.items()}
        with torch.autocast(losses.device.type, enabled=False):
            while (sums := self._attempt(losses, wanted, make)) is None:
                pass  # with fewer weights left to the hooks each time
        self._out = {}
        return sums

    def _attempt(
        self, losses: Tensor, wanted: dict[str, set[str]], make: Callable[[], S]
    ) -> dict[str, S] | None:
        """None where a weight turned out to be one for the loop."""
        self._count = len(losses)
        self._out = sums = {group: make() for group in wanted}
        self._sums = {}
        if not losses.requires_grad:
            raise ValueError(NO_GRADIENT)
        every = [name for name in self._trained if name in set().union(*wanted.values())]
        hooked = [name for name in every if name in self._hooked]
        loop = [name for name in every if name not in self._hooked]
        self._check_loop(loop)
        self._wanted = wanted
        try:
            totals = self._grad(losses.sum(), hooked) if hooked else {}
        finally:
            self._wanted = None
        if hooked and not loop and all(total is None for total in totals.values()):
            raise ValueError(NO_GRADIENT)
        wrong = {name for name in hooked if not self._agrees(name, totals[name])}
        if wrong:
            self._wrong |= wrong
            self._hooked -= wrong
            return None
        for row, loss in enumerate(losses if loop else ()):
            for name, grad in self._grad(loss, loop).items():
                if grad is not None:
                    values = grad.to(torch.promote_types(grad.dtype, torch.float32))
                    self._add(wanted, name, values.reshape(1, -1), slice(row, row + 1))
        return sums

    def _check_loop(self, names: list[str]) -> None:
        """ValueError for weights that would need a backward pass per sample where they are sharded:
        processes with different numbers of samples would wait for each other forever."""
        if names and self._sharded:
            raise ValueError(
                f"model: got {len(names)} weights sharded by fully_shard ({names[0]}, ...), "
                "expected those of plain linear layers in the blocks alone, since no gradient of a "
                f"single sample is known of others; take plain LoRA there, or {USE_HEAD}"
            )

    def _grad(self, loss: Tensor, names: list[str]) -> dict[str, Tensor | None]:
        weights = [self._used.get(name, self._trained[name]) for name in names]
        grads = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        return dict(zip(names, grads, strict=True))

    def _agrees(self, name: str, total: Tensor | None) -> bool:
        if name in self._right:
            return True
        total = torch.zeros(()) if total is None else total
        summed = self._sums.get(name, torch.zeros_like(total)).to(total.dtype)
        size = float(total.double().norm())
        difference = float((summed - total).double().norm())
        if difference > TOLERANCE * size:  # False where a sample is not finite
            return False
        if 0 < size < float("inf"):
            self._right.add(name)
        return True
