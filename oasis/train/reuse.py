"""Train on the selected rows without a forward of their own, under activation checkpointing.

A checkpointed block keeps its input alone and runs twice in a training step: forward, and again in
the backward pass. For a candidate the scoring forward has been the first of the two. So what each
block gave there is kept, of the selected rows it travels with the batch as columns [N, L, D], and
in the training step a block gives that at once and runs in the backward pass alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.modeling_layers import GradientCheckpointingLayer

from oasis.train import transformers_private
from oasis.train.batch.columns import BLOCK
from oasis.train.frozen.blocks import all_blocks, running_blocks
from oasis.train.models import base_model, is_compiled, prompt_config

TOLERANCE = 1e-4  # of a block's largest number: what it gave in scoring against the run again
HALF_TOLERANCE = 3e-2  # bfloat16 and float16
DROPOUTS = tuple(getattr(nn, name) for name in nn.modules.dropout.__all__)
PLAIN = (type(None), bool, int, float, str, Tensor)
OFF = "leave reuse_forward off"


class ForwardReuse:
    """Keeps what the blocks of a model give in scoring, and trains on it.

    The first training step compares what each block gives when it is run again with what was kept,
    and the weights that it uses with those that it has.

    Args:
        model: under activation checkpointing once it trains (`check_reuse`).
        depth: blocks that run in scoring; None for all.
    """

    def __init__(self, model: nn.Module, depth: int | None = None) -> None:
        self.model, self.depth = model, depth
        self.checked = False

    @contextlib.contextmanager
    def keeping(self) -> Iterator[dict[str, list[Tensor]]]:
        """A dict that what the blocks give in forwards inside is put into: by column, one tensor
        [N, L, D] of each forward.

        Raises:
            ValueError: a block that gives something else.
        """
        kept: dict[str, list[Tensor]] = {}

        def hook(column: str) -> Callable[[nn.Module, tuple, Any], None]:
            def keep(block: nn.Module, args: tuple, output: Any) -> None:
                if not isinstance(output, Tensor) or output.ndim != 3:
                    raise ValueError(
                        f"reuse_forward: {self._of(block)} gives a {type(output).__name__}, "
                        f"expected hidden states [N, L, D] alone; {OFF}"
                    )
                kept.setdefault(column, []).append(output.detach())

            return keep

        handles = [
            block.register_forward_hook(hook(column)) for column, block in self._blocks().items()
        ]
        try:
            yield kept
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def training(self, inputs: dict) -> Iterator[dict]:
        """The inputs without the kept columns, for one training forward inside, whose blocks give
        what these hold. The backward pass may take place outside.

        Raises:
            ValueError: a model whose blocks cannot be run again from their input.
            RuntimeError: not each of those blocks was called once.
        """
        kept = {key: value for key, value in inputs.items() if key.startswith(BLOCK)}
        if not kept:
            yield inputs
            return
        blocks, before = self._blocks(), {}
        for column in list(kept):
            before[column] = transformers_private.checkpointing(blocks[column])
            given = self._instead(blocks[column], column, kept)
            transformers_private.set_checkpointing(blocks[column], given)
        try:
            yield {key: value for key, value in inputs.items() if not key.startswith(BLOCK)}
        finally:
            for column, function in before.items():
                transformers_private.set_checkpointing(blocks[column], function)
        if kept:
            raise RuntimeError(
                f"reuse_forward: {len(kept)} of {len(before)} blocks were not called in the "
                f"forward of a training step, expected each once; {OFF}"
            )
        self.checked = True  # by the backward pass, or there was an error

    def _blocks(self) -> dict[str, nn.Module]:
        """The checkpointed blocks that scoring runs, by their column."""
        every = enumerate(all_blocks(self.model)[: self.depth])
        return {
            f"{BLOCK}{index}": block
            for index, block in every
            if getattr(block, "gradient_checkpointing", False)
        }

    def _instead(self, block: nn.Module, column: str, kept: dict[str, Tensor]) -> Callable:
        """What takes the place of the checkpointing function of `block`."""
        check = None if self.checked else self._of(block)

        def give(run: Callable[..., Tensor], *args: Any) -> Tensor:
            if column not in kept:
                raise RuntimeError(
                    f"reuse_forward: {self._of(block)} was called again in the forward of a "
                    f"training step, expected once; {OFF}"
                )
            given = kept.pop(column)
            hidden, *rest = args or (None,)
            others = [("by place", value) for value in rest]
            others += getattr(run, "keywords", {}).items()
            self._check_call(block, hidden, given, others)
            weights = [weight for weight in block.parameters() if weight.requires_grad]

            def again(hidden: Tensor) -> Tensor:
                return run(hidden, *rest)

            return _Recomputed.apply(again, check, given, hidden, *weights)

        return give

    def _check_call(
        self, block: nn.Module, hidden: Any, given: Tensor, others: list[tuple[str, Any]]
    ) -> None:
        if not isinstance(hidden, Tensor) or hidden.shape != given.shape:
            got = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
            raise ValueError(
                f"reuse_forward: {self._of(block)} is called with {got} first, expected hidden "
                f"states {tuple(given.shape)} as in scoring; {OFF}"
            )
        for name, value in others:
            flat = value if isinstance(value, (tuple, list)) else [value]
            for part in flat:
                if not isinstance(part, PLAIN):
                    got = f"a {type(part).__name__}"
                elif isinstance(part, Tensor) and part.requires_grad:
                    got = "a tensor that needs a gradient"
                else:
                    continue
                raise ValueError(
                    f"reuse_forward: {self._of(block)} is called with {got} ({name})"
                    f", expected a block that depends on its hidden states and weights alone; {OFF}"
                )

    def _of(self, block: nn.Module) -> str:
        return f"{type(block).__name__} of {type(base_model(self.model)).__name__}"


def columns(
    kept: dict[str, list[Tensor]], shape: tuple[int, int], parts: list[Tensor] | None = None
) -> dict[str, Tensor]:
    """Of forwards of at least the rows and columns [N, L] = `shape`: theirs, [N, L, D] each.

    `parts`: the rows [n] that each of several forwards was of; what is beyond them is zero.

    Raises:
        ValueError: a block that ran more than once in a forward.
    """
    rows, length = shape
    forwards = 1 if parts is None else len(parts)
    often = [column for column, given in kept.items() if len(given) != forwards]
    if often:
        raise ValueError(
            f"reuse_forward: block {often[0].removeprefix(BLOCK)} ran {len(kept[often[0]])} times "
            f"in {forwards} forwards, expected once in each; {OFF}"
        )
    if parts is None or forwards == 1:
        return {column: given[:rows, :length] for column, (given,) in kept.items()}
    together = {}
    for column, given in kept.items():
        total = sum(map(len, parts))
        whole = given[0].new_zeros(total, max(length, given[-1].shape[1]), given[0].shape[2])
        for index, part in zip(parts, given, strict=True):
            whole[index.to(whole.device), : part.shape[1]] = part
        together[column] = whole[:rows, :length]
    return together


class _Recomputed(torch.autograd.Function):
    """What a block gave earlier; the backward pass runs the block."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Tensor], Tensor],
        check: str | None,
        given: Tensor,
        hidden: Tensor,
        *weights: nn.Parameter,
    ) -> Tensor:
        kind = given.device.type
        ctx.run, ctx.check, ctx.weights = run, check, weights
        ctx.autocast = {
            "device_type": kind,
            "enabled": torch.is_autocast_enabled(kind),
            "dtype": torch.get_autocast_dtype(kind),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }
        ctx.save_for_backward(hidden, given)
        return given.view_as(given)

    # torch declares any number of gradients; here is one output, so one.
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # type: ignore[override]
        hidden, given = ctx.saved_tensors
        hidden = hidden.detach().requires_grad_(ctx.needs_input_grad[3])
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            # Not the leaf, which torch's counter of operations (its multi-grad hooks) cannot take.
            again = ctx.run(hidden.view_as(hidden))
        if ctx.check is not None:
            _check_same(ctx.check, again, given)
            _check_leaves(ctx.check, again, {hidden, *ctx.weights})
        wanted = [leaf for leaf in (hidden, *ctx.weights) if leaf.requires_grad]
        found = iter(torch.autograd.grad(again, wanted, grad, allow_unused=True))
        for_hidden = next(found) if hidden.requires_grad else None
        return None, None, None, for_hidden, *found


def _check_same(block: str, again: Tensor, given: Tensor) -> None:
    tolerance = HALF_TOLERANCE if again.itemsize < 4 or given.itemsize < 4 else TOLERANCE
    padding = given.eq(0).all(dim=-1, keepdim=True)  # beyond a row's part nothing was kept
    apart = (again.detach() - given).masked_fill(padding, 0).abs().max()
    apart = apart / given.abs().max().clamp(min=1e-30)
    if not apart <= tolerance:
        raise ValueError(
            f"reuse_forward: {block} gives something else in training than in scoring (apart by "
            f"{float(apart):.1e} of the largest number, allowed {tolerance:g}), as with dropout, "
            f"noise on embeddings or a state of its own; {OFF}"
        )


def _check_leaves(block: str, again: Tensor, known: set[Tensor]) -> None:
    """ValueError where `again` depends on leaves that need a gradient beside those known."""
    open_, seen = [again.grad_fn], set()
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf not in known:
            raise ValueError(
                f"reuse_forward: {block} uses a trained weight {tuple(leaf.shape)} that it does "
                f"not have itself, expected a block that uses its own alone; {OFF}"
            )
        open_ += [function for function, _ in node.next_functions]


def check_reuse(trainer: Trainer, mode: str, scores: bool) -> None:
    """ValueError where no scoring forward can take the place of the training forward."""
    model, args = trainer.model, trainer.args
    assert model is not None
    distributed = trainer.accelerator.distributed_type.value
    name = type(base_model(model)).__name__
    if not scores:
        raise ValueError("reuse_forward: got True and a policy that scores nothing; expected False")
    if mode != "step":
        raise ValueError(
            f"reuse_forward: got True with mode={mode!r}, in which samples wait while the model "
            "changes; expected mode='step'"
        )
    asked = (getattr(args, f"{kind}_checkpointing", False) for kind in ("activation", "gradient"))
    on = (getattr(module, "gradient_checkpointing", False) for module in model.modules())
    if not any(asked) and not any(on):
        raise ValueError(
            "reuse_forward: got True without activation checkpointing, under which alone the "
            "backward pass runs the blocks; expected gradient_checkpointing=True"
        )
    if distributed != "NO" and not distributed.startswith("MULTI_"):
        raise ValueError(f"reuse_forward: got {distributed}, expected one process or DDP; {OFF}")
    if args.torch_compile or is_compiled(model):
        raise ValueError(
            f"reuse_forward: got a compiled model, which sees no hooks; compile nothing, or {OFF}"
        )
    other = [b for b in running_blocks(model) if not isinstance(b, GradientCheckpointingLayer)]
    if other:
        raise ValueError(
            f"reuse_forward: the blocks of {name} are {type(other[0]).__name__}, expected "
            f"GradientCheckpointingLayer of transformers; {OFF}"
        )
    if getattr(base_model(model).config, "output_router_logits", False):
        raise ValueError(
            f"reuse_forward: {name} has a balancing loss (output_router_logits), which needs the "
            f"routers of a training forward; {OFF}"
        )
    if prompt_config(model) is not None:
        raise ValueError(
            "reuse_forward: got a learned prompt (PEFT), which stands before each row or in its "
            f"cache, expected LoRA or whole weights; {OFF}"
        )
    dropped = dropouts(model)
    if dropped:
        raise ValueError(
            f"reuse_forward: {name} has dropout ({', '.join(dropped[:3])}), which scoring goes "
            f"without; set it to 0, or {OFF}"
        )


def dropouts(model: nn.Module) -> list[str]:
    """Modules and attributes of modules that drop something in training."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, DROPOUTS) and vars(module)["p"] > 0:
            found.append(name)
        for key, value in vars(module).items():
            if re.search("dropout|layerdrop", key) and isinstance(value, float) and value > 0:
                found.append(f"{name}.{key}" if name else key)
    return found
