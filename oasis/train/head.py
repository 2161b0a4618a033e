"""The output head: how the model makes logits of it, and the weight that it applies.

That weight is what the layer, its adapters and its quantisation come to: W + delta under LoRA,
rescaled rows under DoRA, the numbers that quantised ones stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from oasis.train.models import unwrap

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PART = 4096  # rows of a quantised weight that are made at a time, at least
KEEP_OUT = "keep the head out of quantisation, or use a policy that needs no score (random, full)"


@dataclass(frozen=True)
class Head:
    """How the model turns head(hidden) into logits: z = softcap * tanh(scale * (W h + b) / softcap)
    without the cap where `softcap` is None. `gather`: the head may be given single positions.
    `verified`: compared with the model's own logits. `error`: why it cannot be scored by, if so.
    """

    scale: float = 1.0
    softcap: float | None = None
    gather: bool = True
    verified: bool = False
    error: str | None = None

    def logits(self, linear: Tensor) -> Tensor:
        z = linear * self.scale
        return z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)


def declared(text) -> Head:
    """Scale and soft cap that the configuration `text` names: `logit_scale` (Cohere),
    `lm_head_multiplier` (Falcon-H1) and `output_multiplier` are factors, `logits_scaling` is a
    divisor (Granite), in HyperCLOVA X a factor; caps are Gemma's, RecurrentGemma's, xLSTM's.
    """
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier", "output_multiplier"):
        scale *= float(getattr(text, name, None) or 1)
    scaling = float(getattr(text, "logits_scaling", None) or 1)
    scale *= scaling if getattr(text, "model_type", "") == "hyperclovax" else 1 / scaling
    caps = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    return Head(scale, next((cap for name in caps if (cap := getattr(text, name, None))), None))


@dataclass(frozen=True)
class HeadWeight:
    """The weight [V, D] that an output head applies, of which `rows(first, last)` makes a part.

    `bias` [V] or None. `dense`: it is in memory as numbers of `dtype`; of others, which are
    quantised, no more than a part is made at a time.
    """

    rows: Callable[[int, int], Tensor]
    shape: tuple[int, int]
    dtype: torch.dtype
    bias: Tensor | None
    dense: bool

    def whole(self) -> Tensor:
        """All of it, [V, D]."""
        return self.rows(0, self.shape[0])

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of rows that together are all: of each, sums of tokens x tokens are kept, so there
        are no more than eight.
        """
        size = max(PART, -(-self.shape[0] // 8))
        return [(a, min(a + size, self.shape[0])) for a in range(0, self.shape[0], size)]

    def product(self, hidden: Tensor) -> Tensor:
        """W h + b [T, V] of `hidden` [T, D], in `dtype`."""
        hidden = hidden.to(self.dtype)
        linear = torch.cat([hidden @ self.rows(*part).T for part in self.parts()], dim=1)
        return linear if self.bias is None else linear + self.bias.to(self.dtype)

    def at(self, tokens: list[int]) -> tuple[Tensor, Tensor | None]:
        """The rows [len(tokens), D] of some tokens, and their biases."""
        rows = torch.cat([self.rows(token, token + 1) for token in tokens])
        return rows, None if self.bias is None else self.bias[tokens]


def output_head(model: nn.Module) -> nn.Module:
    """What makes logits of the last hidden states; ValueError where there is no such module."""
    head = unwrap(model).get_output_embeddings()
    if head is None:
        raise ValueError("model: get_output_embeddings() is None, so there is no head to score by")
    return head


def head_weight(head: nn.Module) -> HeadWeight:
    """What the output head `head` applies (`nn.Linear`, one of bitsandbytes or torchao, or PEFT's
    around such a one).

    Raises:
        ValueError: an adapter that is neither LoRA nor DoRA, LoRA with a bias, or numbers that
            nothing here can read.
    """
    layer: Any = head
    base = getattr(layer, "base_layer", layer)
    rows, shape, dtype, dense = _stored(base)
    if base is not layer and not layer.disable_adapters and not layer.merged:
        rows = _adapted(layer, rows, dtype)
    return HeadWeight(rows, shape, dtype, getattr(base, "bias", None), dense)


Rows = Callable[[int, int], Tensor]


def _stored(base: Any) -> tuple[Rows, tuple[int, int], torch.dtype, bool]:
    """Rows of a layer's own weight, its shape, their type, and whether they are stored so."""
    weight = cast(Any, getattr(base, "weight", None))
    if getattr(weight, "quant_state", None) is not None:
        state = weight.quant_state
        if weight.device.type == "cpu":
            raise ValueError(
                "output head: got 4-bit numbers of bitsandbytes on the CPU, where a forward in "
                f"eval mode stores them in another order, expected them on a GPU; {KEEP_OUT}"
            )
        return lambda a, b: _four_bits(weight, a, b), tuple(state.shape), state.dtype, False
    scales = getattr(weight, "SCB", None)
    if scales is None:
        scales = getattr(getattr(base, "state", None), "SCB", None)  # bitsandbytes, after a forward
    if scales is not None and weight.dtype == torch.int8:
        kind = torch.float32
        read = lambda a, b: weight.data[a:b].to(kind) * (scales[a:b, None].to(kind) / 127)  # noqa: E731
        return read, tuple(weight.shape), kind, False
    if weight is not None and is_traceable_wrapper_subclass(weight):
        return _subclass(weight)
    # Of torch.ao's quantised layers it is a function.
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.dtype not in FLOATS:
        shaped = isinstance(weight, Tensor)
        got = f"a weight {tuple(weight.shape)} of {weight.dtype}" if shaped else "no weight"
        raise ValueError(
            f"output head: got {got} ({type(base).__name__}), expected a floating-point matrix "
            f"[V, D], or one quantised by bitsandbytes or torchao; {KEEP_OUT}"
        )
    size, width = weight.shape
    return lambda a, b: weight[a:b], (size, width), weight.dtype, True


def _four_bits(weight: Any, first: int, last: int) -> Tensor:
    """Rows of a 4-bit weight of bitsandbytes, whose numbers share a scale in runs of the flattened
    matrix.
    """
    # Where such a weight is, so is bitsandbytes; where types are checked, it need not be.
    from bitsandbytes import functional  # pyright: ignore[reportMissingImports]

    state, width = weight.quant_state, weight.quant_state.shape[1]
    size, total = state.blocksize, state.shape[0] * width
    runs = first * width // size, -(-last * width // size)
    begin, end = runs[0] * size, min(runs[1] * size, total)
    scales = state.absmax
    if state.nested:  # the scales are quantised too
        scales = functional.dequantize_blockwise(scales, state.state2) + state.offset
    part = functional.QuantState(
        absmax=scales[slice(*runs)].float(),
        shape=torch.Size([1, end - begin]),
        code=state.code,
        blocksize=size,
        quant_type=state.quant_type,
        dtype=state.dtype,
    )
    packed = weight.data.view(torch.uint8).flatten()[begin // 2 : (end + 1) // 2]
    flat = functional.dequantize_4bit(packed.view(-1, 1), part).flatten()
    return flat[first * width - begin : last * width - begin].view(-1, width)


def _subclass(weight: Any) -> tuple[Rows, tuple[int, int], torch.dtype, bool]:
    """Rows of a tensor subclass of torchao, which slices and dequantises itself."""
    name = f"{type(weight).__module__}.{type(weight).__name__}"
    one: Any = None
    try:
        one = weight[:1].dequantize()
        good = name.startswith("torchao.") and one.shape == (1, weight.shape[1])
    # What torchao and other subclasses raise for an operation that they lack.
    except (RuntimeError, NotImplementedError, TypeError, AssertionError, IndexError):
        good = False
    if not good:
        raise ValueError(
            f"output head: got a weight that is a {name}, of which no rows can be read, expected a "
            f"floating-point matrix [V, D]; {KEEP_OUT}"
        )
    rows, columns = weight.shape
    return lambda a, b: weight[a:b].dequantize(), (rows, columns), one.dtype, False


def _adapted(layer: Any, rows: Rows, dtype: torch.dtype) -> Rows:
    """`rows` with the active adapters of PEFT's `layer`."""
    lora = getattr(layer, "lora_A", None)
    # Others are active on other layers.
    names = [name for name in layer.active_adapters if lora is None or name in lora]
    variants = {name: getattr(layer, "lora_variant", {}).get(name) for name in names}
    scaled = [name for name in names if type(variants[name]).__name__ == "DoraLinearVariant"]
    for name in names:
        plain = lora is not None and (variants[name] is None or scaled == names == [name])
        if not plain or getattr(layer, "lora_bias", {}).get(name):
            raise ValueError(
                f"output head: adapter {name!r} is neither plain LoRA (weight + delta) nor DoRA "
                "alone; use plain LoRA on the head, or take the head out of target_modules"
            )

    def adapted(first: int, last: int) -> Tensor:
        weight = rows(first, last)
        for name in names:
            delta = layer.lora_B[name].weight[first:last] @ layer.lora_A[name].weight
            weight = weight + (delta * layer.scaling[name]).to(dtype)
        for name in scaled:
            sizes = layer.lora_magnitude_vector[name].weight[first:last].to(dtype)
            weight = weight * (sizes / torch.linalg.norm(weight, dim=1)).unsqueeze(1)
        return weight

    return adapted if names else rows
