"""Score candidates with one forward of the wrapped model and no logits of the whole batch.

Everything happens in a pre-hook of the output head, where the last hidden states come by and where
sharded weights (FSDP, ZeRO) are gathered. The hook hands the head only what is needed, so it works
whether or not the model's `forward` takes `logits_to_keep`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import oasis
from oasis.train.batch import packed
from oasis.train.batch.subbatch import is_right_padded, right_padded, take, targets

TOLERANCE = 5e-3  # of the largest logit; TF32 products are good to about 1e-3
HALF_TOLERANCE = 3e-2  # bfloat16 and float16, autocast included
# Of the norm of hidden states, what a later token may change: nothing but rounding. Two batches
# that SmolLM2 computes in bfloat16 differ by 1.5e-2; a later token that is seen changes 2e-1.
INFLUENCE, HALF_INFLUENCE = 5e-4, 6e-2
NOT_CALLED = "the output head was called {} times in one forward, expected once"


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


WRAPPED = ("_orig_mod", "module", "_fsdp_wrapped_module")  # by compile; DDP, DeepSpeed; FSDP1


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The model (under PEFT: PEFT's, which answers for it) that DDP, FSDP and the like wrap."""
    inner: nn.Module | None = model
    while inner is not None:
        model = inner
        # Not by getattr, since wrappers answer for the model inside.
        inside = (model._modules.get(name) for name in WRAPPED)
        inner = next((module for module in inside if module is not None), None)
    return cast(PreTrainedModel, model)


def base_model(model: nn.Module) -> PreTrainedModel:
    """The model under those and under PEFT's."""
    base: Any = unwrap(model)
    return base.get_base_model() if hasattr(base, "get_base_model") else base


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` has been given the model or some of its modules."""
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def forward_parameters(model: nn.Module) -> frozenset[str]:
    """Names that the model's own `forward` takes (under LoRA: those of the base model), and those
    that a class it derives from takes, where it passes on what it does not know."""
    # Of the class, since accelerate replaces the instance's forward by one without a signature.
    return _forward_parameters(type(base_model(model)))


@functools.cache
def _forward_parameters(model: type[nn.Module]) -> frozenset[str]:
    names: set[str] = set()
    for cls in model.__mro__:
        if "forward" in vars(cls) and cls is not nn.Module:
            parameters = inspect.signature(cls.forward).parameters
            names.update(parameters)
            if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
                break
    return frozenset(names)


def output_head(model: nn.Module) -> nn.Module:
    """What makes logits of the last hidden states; ValueError where there is no such module."""
    head = unwrap(model).get_output_embeddings()
    if head is None:
        raise ValueError("model: get_output_embeddings() is None, so there is no head to score by")
    return head


def head_parameters(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight [V, D] and bias [V] or None as the head applies them: LoRA merged in, not left out.

    Raises:
        ValueError: an adapter that is not W + delta (DoRA, LoRA with a bias), a quantised weight.
    """
    layer: Any = head  # nn.Linear, or PEFT's around one
    base = getattr(layer, "base_layer", layer)
    weight, bias = base.weight, getattr(base, "bias", None)
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"output head: got a weight {tuple(weight.shape)} of {weight.dtype}, expected a "
            "floating-point matrix [V, D]; keep the head out of quantisation"
        )
    if base is layer or layer.disable_adapters or layer.merged:
        return weight, bias
    lora = getattr(layer, "lora_A", None)
    for name in layer.active_adapters:
        if lora is not None and name not in lora:
            continue  # active on other layers
        variant = getattr(layer, "lora_variant", {}).get(name)  # DoRA and the like
        if lora is None or variant or getattr(layer, "lora_bias", {}).get(name):
            raise ValueError(
                f"output head: adapter {name!r} is not plain LoRA (weight + delta); "
                "use plain LoRA on the head, or take the head out of target_modules"
            )
        weight = weight + layer.get_delta_weight(name).to(weight.dtype)
    return weight, bias


@contextlib.contextmanager
def head_hook(model: nn.Module, pass_on: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
    """While open, the head gets `pass_on(head, hidden)` in place of `hidden` [N, L, D]."""

    def hook(module: nn.Module, args: tuple) -> tuple:
        return (pass_on(module, args[0]), *args[1:])

    # Looked up now, since PEFT and FSDP replace modules.
    handle = output_head(model).register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients and nothing compiled (a compiled forward does not see hooks) inside;
    afterwards each module is in exactly the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    eager = (
        torch.compiler.set_stance("force_eager") if is_compiled(model) else contextlib.nullcontext()
    )
    model.eval()
    try:
        with torch.no_grad(), eager:
            yield
    finally:
        for module, training in modes:
            module.training = training


def check_length(hidden: Tensor, labels: Tensor) -> None:
    """Raises ValueError where the hidden states are not one per label column."""
    if hidden.shape[:2] != labels.shape:
        raise ValueError(
            f"labels: got {tuple(labels.shape)}, but the model's last hidden states are "
            f"{tuple(hidden.shape)}; every input position needs a label (-100 to leave it out)"
        )


def model_inputs(model: nn.Module, batch: dict) -> dict:
    """What `forward` is called with: the keys it takes but the labels, and no key/value cache.

    Padding on the right is not masked: no token looks there, whereas padding beyond a sliding
    window would attend to nothing and may come out as NaN (see `subbatch.right_padded`). The mask
    stays in models that look ahead (all of Gemma's with `use_bidirectional_attention`, or by
    `token_type_ids`).
    """
    known = forward_parameters(model) - {"labels"}
    if packed.is_packed(batch):
        known |= packed.KEYS
    inputs = {key: value for key, value in batch.items() if key in known}
    mask = inputs.get("attention_mask")
    ahead = getattr(text_config(model), "use_bidirectional_attention", None)
    ahead = ahead or any(key.endswith("token_type_ids") for key in inputs)
    # Nor where padding would count in the balance of a router's experts.
    ahead = ahead or getattr(text_config(model), "output_router_logits", False)
    if mask is not None and not ahead and is_right_padded(mask):
        inputs["attention_mask"] = torch.ones_like(mask)
    return {**inputs, "use_cache": False} if "use_cache" in known else inputs


def head_scores(
    module: nn.Module, hidden: Tensor, labels: Tensor, head: Head, sketch: int = 0
) -> oasis.HeadGram:
    """Gram matrix of last-layer gradients, their sketches of `sketch` numbers (0: none), loss,
    entropy and EL2N of N rows, from what enters the output head `module`: `hidden` [N, L, D],
    `labels` [N, L].
    """
    weight, bias = head_parameters(module)
    rows, columns = targets(labels).nonzero(as_tuple=True)
    with torch.autocast(hidden.device.type, enabled=False):
        return oasis.head_gram(
            hidden[rows, columns].to(weight.dtype),
            weight,
            labels[rows, columns + 1],
            rows,
            num_samples=len(labels),
            bias=bias,
            scale=head.scale,
            softcap=head.softcap,
            sketch=sketch,
        )


def score(model: nn.Module, batch: dict, head: Head) -> oasis.HeadGram:
    """Gram matrix of last-layer gradients, loss, entropy and EL2N of the N rows of `batch`.

    One forward in eval mode without gradients; no logits are left for the model to compute.

    Raises:
        ValueError: the head cannot be scored by (`head.error`, or see `head_parameters`).
    """
    if head.error is not None:
        raise ValueError(head.error)
    batch = right_padded(batch)
    scores: list[oasis.HeadGram] = []

    def capture(module: nn.Module, hidden: Tensor) -> Tensor:
        check_length(hidden, batch["labels"])
        scores.append(head_scores(module, hidden, batch["labels"], head))
        return hidden[:, :0]

    with evaluating(model), head_hook(model, capture):
        model(**model_inputs(model, batch))
    if len(scores) != 1:
        raise RuntimeError(NOT_CALLED.format(len(scores)))
    return scores[0]


def text_config(model: nn.Module) -> Any:
    """The configuration of the language model, in a model of several too."""
    config = unwrap(model).config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def declared(text) -> Head:
    """Scale and soft-cap that the configuration `text` names (Gemma, Cohere, Granite)."""
    scale = getattr(text, "logit_scale", None) or 1.0 / (getattr(text, "logits_scaling", None) or 1)
    return Head(scale=float(scale), softcap=getattr(text, "final_logit_softcapping", None))


@dataclass
class _Comparison:
    own: Tensor  # [T, V] the model's own logits at the label positions, float64
    gathered: Tensor  # what it makes of those positions handed to the head alone
    before: Tensor  # [P, D] what enters the head before the last label token of a row, float64
    changed: Tensor  # the same, of the same row of as large a batch, with another token there
    linear: Tensor | None  # [T, V] W h + b; None where the head is not of this form
    half: bool  # whether any of it is computed in half types
    error: str | None = None

    def close(self, logits: Tensor) -> bool:
        """Equal within tolerance at the positions that are finite."""
        return _close(logits, self.own, HALF_TOLERANCE if self.half else TOLERANCE)

    @property
    def causal(self) -> bool:
        """Whether that other token had no influence on what comes before it."""
        change = (self.changed - self.before).nan_to_num().norm()
        limit = HALF_INFLUENCE if self.half else INFLUENCE
        return bool(change <= limit * self.before.nan_to_num().norm())


def _close(logits: Tensor, own: Tensor, tolerance: float) -> bool:
    finite = own.isfinite().all(dim=1)
    if not finite.any():
        return True
    limit = tolerance * own[finite].abs().max()
    return bool(((logits - own)[finite].abs() <= limit).all())


def _with_another_end(model: nn.Module, batch: dict) -> tuple[dict, Tensor]:
    """`batch` with another token in place of the last row's last label token.

    Also the positions [L] before that token which predict one; none where there is no such token.
    """
    labels, ids = batch["labels"], batch.get("input_ids")
    before = targets(labels)[-1]
    if ids is None or ids.shape != labels.shape or not before.any():
        return batch, torch.zeros_like(before)
    end = int(before.nonzero()[-1]) + 1
    config = text_config(model)
    taken = {value for key, value in vars(unwrap(model).config).items() if "_token_" in key}
    other = (int(ids[-1, end]) + 1) % config.vocab_size
    while other in taken:
        other = (other + 1) % config.vocab_size
    ids = ids.clone()
    ids[-1, end] = other
    return {**batch, "input_ids": ids}, before


def _compare(model: nn.Module, batch: dict, rows: list[int]) -> _Comparison:
    batch = take(batch, [*rows, rows[0]])
    where = targets(batch["labels"])
    where[-1] = False  # a copy of the first row, whose end is another one in the second forward
    other, before = _with_another_end(model, batch)
    seen: dict = {}

    def keep(module: nn.Module, hidden: Tensor) -> Tensor:
        check_length(hidden, batch["labels"])
        seen["before"] = hidden[-1, before].double()
        h, device = hidden[where], hidden.device.type
        seen.update(linear=None, half=torch.is_autocast_enabled(device) or h.itemsize < 4)
        try:
            weight, bias = head_parameters(module)
        except ValueError as error:  # no matter to a policy that needs no score
            seen["error"] = str(error)
            return hidden
        if weight.itemsize < 4:
            seen["half"] = True
        with torch.autocast(device, enabled=False):
            linear = h.to(weight.dtype) @ weight.T
            seen["linear"] = (linear if bias is None else linear + bias).double()
        return hidden

    def gather(module: nn.Module, hidden: Tensor) -> Tensor:
        seen["changed"] = hidden[-1, before].double()
        return hidden[where].unsqueeze(0)

    with evaluating(model):
        with head_hook(model, keep):
            logits = model(**model_inputs(model, batch)).logits
        with head_hook(model, gather):
            gathered = model(**model_inputs(model, other)).logits.double()
    if not seen:
        raise RuntimeError(NOT_CALLED.format(0))
    return _Comparison(logits[where].double(), gathered, **seen)


def inspect_head(model: nn.Module, batch: dict, everywhere: Callable[[bool], bool] = bool) -> Head:
    """Compare head(hidden) with the model's own logits at the label positions of two rows.

    What the configuration declares is tried first, then the plain product; where neither is what
    the model computes, `error` of the answer says so. Rows with non-finite logits tell nothing; if
    all are such, the answer is what the configuration declares, not `verified`.

    Args:
        model, batch: the model, and rows to try it with, two at a time.
        everywhere: whether what is true here is so on every process; until all are done each
            process goes on, since under FSDP a forward of one is a forward of all.

    Raises:
        ValueError: a model whose logits depend on tokens that come later.
    """
    labelled = targets(batch["labels"]).any(dim=1).nonzero().flatten().tolist()
    pairs = [labelled[start : start + 2] for start in range(0, len(labelled), 2)] or [[0]]
    found, at = None, 0
    while True:
        seen = _compare(model, batch, pairs[min(at, len(pairs) - 1)])
        at += 1
        if found is None and seen.own.isfinite().all(dim=1).any():
            found = _conclude(model, seen)
        if everywhere(found is not None or at >= len(pairs)):
            return found or declared(text_config(model))


def _conclude(model: nn.Module, seen: _Comparison) -> Head:
    name, expected = type(unwrap(model)).__name__, declared(text_config(model))
    if not seen.causal:
        raise ValueError(
            f"model: got {name}, whose logits depend on the tokens they are to predict (is it an "
            "encoder, or a decoder with is_decoder=False?); expected a causal language model"
        )
    gather = seen.gathered.shape == (1, *seen.own.shape) and seen.close(seen.gathered[0])
    if seen.error is not None or seen.linear is None:
        return replace(expected, gather=gather, verified=True, error=seen.error)
    for head in (expected, Head()):
        if seen.close(head.logits(seen.linear)):
            return replace(head, gather=gather, verified=True)
    error = (
        f"model: {name} changes the logits behind its output head in a "
        "way that its configuration does not name, so that gradients of the head cannot be "
        "computed from its input; use a policy that needs no score (random, full)"
    )
    return replace(expected, gather=gather, verified=True, error=error)


def check_apart(model: nn.Module, rows: dict, like: dict) -> None:
    """ValueError where sequences packed into one row as `like` does have other logits than the
    padded `rows` they are: their tokens see each other, and none would be trained on as scored.
    """
    rows = take(rows, list(range(min(2, len(rows["labels"])))))
    real = rows["attention_mask"] != 0
    with evaluating(model):
        alone = model(**model_inputs(model, rows)).logits[real]
        together = model(**model_inputs(model, packed.packed(rows, like))).logits[0]
    half = torch.is_autocast_enabled(real.device.type) or alone.itemsize < 4
    tolerance = HALF_TOLERANCE if half else TOLERANCE
    if not _close(together.double(), alone.double(), tolerance):
        raise ValueError(
            f"model: got {type(unwrap(model)).__name__}, in which sequences of one packed row see "
            "each other; expected an attention that keeps them apart "
            '(attn_implementation="flash_attention_2" or "sdpa"), or batches that are not packed'
        )
