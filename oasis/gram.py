"""Gram matrices of per-sample gradients: of given gradients, and of the output head's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oasis import ops

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _check_float(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.dtype not in _FLOATS:
        raise TypeError(
            f"{name}: got dtype {tensor.dtype}, expected float32, bfloat16, float16 or float64"
        )


def grad_gram(grads: Tensor | Sequence[Tensor]) -> Tensor:
    """Gram matrix K_ij = <g_i, g_j> of per-sample gradients, in one pass over memory.

    Args:
        grads: [N, ...], one gradient per sample; or a sequence of such tensors, one per parameter,
            which are never concatenated (their Gram matrices add up). float32, bfloat16, float16
            or float64; any strides, without a copy.

    Returns:
        [N, N] float64 on the device of `grads`. float64 input is summed in float64; other types
        are multiplied and summed in float32 over runs of 32 products a lane, the runs in float64:
        the error is at most 2.3e-6 sum_p |g_ip g_jp|, about 1e-7 of it in practice, for numbers
        between 1e-18 and 1e18 (products must fit float32). The order of summation is fixed, so a
        run repeats bit for bit.

    Raises:
        TypeError, ValueError: not tensors of a supported floating type; no sample; different
            numbers of samples or devices among the parameters.
    """
    tensors = [grads] if isinstance(grads, Tensor) else grads
    if not isinstance(tensors, Sequence) or not tensors:
        raise TypeError(
            f"grads: got {type(grads).__name__}, expected a tensor [N, ...] or a non-empty "
            "sequence of them, one per parameter"
        )
    for i, g in enumerate(tensors):
        name = "grads" if isinstance(grads, Tensor) else f"grads[{i}]"
        _check_float(name, g)
        # A parameter that is a single number has a gradient [N]; alone it is more likely a mistake.
        if g.numel() == 0 or g.ndim < (2 if isinstance(grads, Tensor) else 1):
            raise ValueError(
                f"{name}: got shape {list(g.shape)}, expected [N, ...] with N >= 1 samples and at "
                "least one number per sample"
            )
        if g.shape[0] != tensors[0].shape[0]:
            raise ValueError(
                f"{name}: got {g.shape[0]} samples, expected {tensors[0].shape[0]} as in grads[0]"
            )
        if g.device != tensors[0].device:
            raise ValueError(
                f"{name}: got device {g.device}, expected {tensors[0].device} as in grads[0]"
            )
    return ops.grad_gram([g.detach() for g in tensors])


@dataclass(frozen=True)
class HeadGram:
    """What one pass over the vocabulary yields per sample (N samples).

    Attributes:
        gram: [N, N] float64, inner products of the head's gradients; zero rows without labels.
        loss: [N] float64, cross-entropy in nats, mean (or sum) over the sample's label tokens.
        entropy: [N] float64, entropy of the predictions in nats, likewise.
        el2n: [N] float64, ||softmax(z) - onehot(y)||, likewise.
        correct: [N] int64, label tokens whose label has the strictly largest logit.
        tokens: [N] int64, label tokens.
        reduction: "mean" or "sum", over the tokens of a sample.
    """

    gram: Tensor
    loss: Tensor
    entropy: Tensor
    el2n: Tensor
    correct: Tensor
    tokens: Tensor
    reduction: str = "mean"

    @property
    def perplexity(self) -> Tensor:
        """[N] exp of the mean loss per label token; 1 without label tokens."""
        count = self.tokens.clamp(min=1) if self.reduction == "sum" else 1
        return (self.loss / count).exp()


def head_gram(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    reduction: str = "mean",
) -> HeadGram:
    """Gram matrix of the per-sample gradients of the output head, without those gradients.

    The gradient of sample i's cross-entropy with respect to W is sum_t c_t delta_t h_t^T, a V x D
    matrix that is never formed, and neither are all logits (docs/method.md 1). Logits are
    z = softcap tanh(scale (W h + bias) / softcap), or scale (W h + bias) without `softcap`.

    Args:
        hidden: [T, D], what enters the head at each position; float32, bfloat16, float16, float64.
        weight: [V, D], same type. Low precision is widened block by block, sums are float32 or
            wider (float64 throughout for float64).
        labels: [T] int64 in [0, V), already shifted (the label of hidden[t] is labels[t]);
            -100 is ignored.
        sample: [T] int64 in [0, num_samples), the sample that owns each position, in any order.
        num_samples: N.
        bias: [V] or None.
        softcap: cap of the logits, > 0, or None.
        scale: factor on the logits before the cap.
        reduction: "mean" (c_t = 1 / n_i over the n_i label tokens of the sample) or "sum" (1).

    Returns:
        HeadGram. A sample without label tokens has zeros everywhere.

    Raises:
        TypeError, ValueError: naming the argument; for a label out of range, the position.
    """
    _check_float("hidden", hidden)
    _check_float("weight", weight)
    if hidden.ndim != 2 or hidden.shape[1] == 0:
        raise ValueError(f"hidden: got shape {list(hidden.shape)}, expected [T, D]")
    tokens, width = hidden.shape
    if weight.ndim != 2 or weight.shape[1] != width or weight.shape[0] == 0:
        raise ValueError(
            f"weight: got shape {list(weight.shape)}, expected [V, {width}] to match hidden"
        )
    vocabulary = weight.shape[0]
    if weight.dtype != hidden.dtype:
        raise TypeError(f"weight: got dtype {weight.dtype}, expected {hidden.dtype} as hidden")
    for name, value in (("labels", labels), ("sample", sample)):
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name}: got {got}, expected an int64 tensor [{tokens}]")
        if value.shape != (tokens,):
            raise ValueError(f"{name}: got shape {list(value.shape)}, expected [{tokens}]")
    if bias is not None:
        _check_float("bias", bias)
        if bias.shape != (vocabulary,):
            raise ValueError(f"bias: got shape {list(bias.shape)}, expected [{vocabulary}]")
    for name, value in (("weight", weight), ("labels", labels), ("sample", sample), ("bias", bias)):
        if value is not None and value.device != hidden.device:
            raise ValueError(f"{name}: got device {value.device}, expected {hidden.device}")
    if not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"num_samples: got {num_samples!r}, expected an integer >= 1")
    if softcap is not None and not 0 < softcap < float("inf"):
        raise ValueError(f"softcap: got {softcap!r}, expected a finite number > 0 or None")
    if not abs(scale) < float("inf"):
        raise ValueError(f"scale: got {scale!r}, expected a finite number")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: got {reduction!r}, expected 'mean' or 'sum'")
    outside = (sample < 0) | (sample >= num_samples)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"sample: got {int(sample[at])} at position {at}, expected 0 to {num_samples - 1}"
        )
    outside = ((labels < 0) & (labels != -100)) | (labels >= vocabulary)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"labels: got {int(labels[at])} at position {at} (sample {int(sample[at])}), expected "
            f"0 to {vocabulary - 1}, or -100 to ignore the position"
        )
    return HeadGram(
        *ops.head_gram(
            hidden.detach(),
            weight.detach(),
            labels,
            sample,
            num_samples,
            None if bias is None else bias.detach(),
            float(softcap or 0.0),
            float(scale),
            reduction == "mean",
        ),
        reduction,
    )
