"""Gram matrix of the output head's per-sample gradients, from hidden states."""

from __future__ import annotations

from typing import overload

from torch import Tensor

from oasis import operators
from oasis.gram import cost
from oasis.gram.checks import check_head, check_method
from oasis.gram.types import HeadGram, HeadGramPartial, gathered


@overload
def head_gram(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = ...,
    softcap: float | None = ...,
    scale: float = ...,
    reduction: str = ...,
    method: str = ...,
    sketch_dim: int = ...,
    seed: int = ...,
    sketch: int = ...,
    vocab_range: None = None,
) -> HeadGram: ...
@overload
def head_gram(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = ...,
    softcap: float | None = ...,
    scale: float = ...,
    reduction: str = ...,
    method: str = ...,
    sketch_dim: int = ...,
    seed: int = ...,
    sketch: int = ...,
    vocab_range: tuple[int, int],
) -> HeadGramPartial: ...
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
    method: str = "auto",
    sketch_dim: int = 4096,
    seed: int = 0,
    sketch: int = 512,
    vocab_range: tuple[int, int] | None = None,
) -> HeadGram | HeadGramPartial:
    """Gram matrix of the per-sample gradients of the output head, without those gradients.

    The gradient of sample i's cross-entropy with respect to W is sum_t c_t delta_t h_t^T, a V x D
    matrix that is never formed, and neither are all logits (docs/method.md 1). Logits are
    z = softcap tanh(scale (W h + bias) / softcap), or scale (W h + bias) without `softcap`.

    Args:
        hidden: [T, D], what enters the head at each position; float32, bfloat16, float16, float64.
        weight: [V, D], same type. Sums are float32 (float64 for float64). Half types are multiplied
            as they are on CUDA from torch 2.8 on, elsewhere widened block by block.
        labels: [T] int64 in [0, V), already shifted (the label of hidden[t] is labels[t]);
            -100 is ignored. On a GPU an ignored position costs what a label token does ("ghost",
            "folded", "float8"): leave it out where they are many.
        sample: [T] int64 in [0, num_samples), the sample that owns each position, in any order.
        num_samples: N.
        bias: [V] or None.
        softcap: cap of the logits, > 0, or None.
        scale: factor on the logits before the cap.
        reduction: "mean" (c_t = 1 / n_i over the n_i label tokens of the sample) or "sum" (1).
        method: "ghost" (products of tokens) and "instantiate" (gradients of one vocabulary block
            at a time, for T well above 4 D) are exact; "sketch" is an unbiased estimate whose
            memory and time grow with T alone: the standard deviation of K_ij over seeds is below
            sqrt(11 / sketch_dim K_ii K_jj). "auto": the cheapest by a cost model of the shapes,
            a sketch only for N >= 1024. The result names what was used. "folded", never taken by
            itself, is "ghost" with the vocabulary folded into `sketch_dim` columns, labels apart
            and exact: an unbiased estimate, a deviation below sqrt(2 / sketch_dim K_ii K_jj).
            "float8", never taken by itself either, is "ghost" with error vectors off the labels
            rounded to float8: some 3e-3 of sqrt(K_ii K_jj), 6e-2 at most (1.3e-1 under a soft cap).
            For a GPU of compute capability 8.9 or newer with the Triton kernels.
        sketch_dim: of "sketch" and "folded" alone: numbers that a sample's gradient ("sketch"), or
            a token's error vector ("folded"), is estimated from, >= 16.
        seed: of all sketches: the same seed gives the same ones.
        sketch: with every method: numbers of the sketch of each gradient that is returned beside K
            (`HeadGram.sketch`), to compare samples of different calls; 0 for none. Inner products
            of sketches are unbiased over seeds, with a standard deviation below
            sqrt(11 / sketch I_i I_j). Of the same pass over the vocabulary, which it makes 2 to 3 %
            longer.
        vocab_range: (first, last) if `weight` and `bias` hold only these rows of the head; labels
            still count from the whole head's first row. Takes "ghost".

    Returns:
        HeadGram. A sample without label tokens has zeros everywhere. With `vocab_range`, a part
        to be passed to `oasis.merge` with the others. Where the squares of a sample's hidden
        states leave float32 (beyond about 1e19), its own squared norm is not finite ("ghost",
        "folded", "float8", "sketch") or right ("instantiate" up to 128 samples), never a wrong
        number: `select` takes it for a non-finite sample. Entries of other samples are what they
        would be without.

    Raises:
        TypeError, ValueError: naming the argument; for a label out of range, the position. On a GPU
            "ghost", "folded" and "float8" wait for no value: there a label out of range makes its
            sample's numbers NaN, a sample out of range those of all, which `select` takes for
            non-finite samples.
    """
    check_head(hidden, weight, labels, sample, num_samples, bias, softcap, scale, vocab_range)
    check_method(method, reduction, sketch_dim, seed, sketch, vocab_range)
    bias = None if bias is None else bias.detach()
    cap, scale = float(softcap or 0.0), float(scale)
    arguments = hidden.detach(), weight.detach(), labels, sample, num_samples, bias, cap, scale
    mean = reduction == "mean"
    if vocab_range is not None:
        sums = operators.head_partial(*arguments, mean, vocab_range[0], seed, sketch)
        return HeadGramPartial(vocab_range, *sums, cap, scale, reduction, seed)
    if method == "auto":
        shape = hidden.shape[0], hidden.shape[1], weight.shape[0], num_samples
        method = cost.pick(*shape, sketch_dim, hidden.dtype, hidden.device)
    results = operators.head_gram(*arguments, mean, method, sketch_dim, seed, sketch)
    return gathered(results, reduction, method, seed)
