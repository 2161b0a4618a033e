"""head_gram: the Gram matrix of the output head's per-sample gradients, no gradient written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from comparing import assert_relative, cosine_scaled
from head_problems import LOW, METRICS, assert_like_reference, confident, plain_gram, problem
from hypothesis import given
from hypothesis import strategies as st
from right_answers import head_arguments, vectors

import oasis
from oasis import reference


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_vectors(case, dtype, rtol):
    got = oasis.head_gram(**head_arguments(case, dtype))
    want = torch.tensor(case["gram"], dtype=torch.float64)
    assert_relative(got.gram.diagonal(), want.diagonal(), rtol)
    assert cosine_scaled(got.gram - want, want).max() <= rtol
    for name in METRICS:
        assert_relative(getattr(got, name), case[name], rtol)
    assert got.tokens.tolist() == case["tokens"]


@pytest.mark.parametrize(
    "lengths",
    [[1], [5], [1, 1, 1], [3, 1, 6], [1] * 16, [2, 3] * 8, [4] * 17, [0, 3, 0, 2]],
    ids=str,
)
@pytest.mark.parametrize("v", [2, 3, 127, 1000])
def test_ragged_shapes(lengths, v, generator):
    assert_like_reference(problem(generator, lengths=lengths, d=7, v=v))


@pytest.mark.parametrize("v", [4096, 5000, 8193, 9001, 33000])
def test_several_vocabulary_blocks(v, generator):
    assert_like_reference(problem(generator, lengths=[3, 1, 2], d=12, v=v))


@pytest.mark.parametrize("d", [1, 2, 65, 300])
def test_hidden_sizes(d, generator):
    assert_like_reference(problem(generator, lengths=[3, 4], d=d, v=50))


def test_many_tokens_for_a_narrow_head(generator):
    # T well above 2 D: where a cost model may take the other order of the products.
    assert_like_reference(problem(generator, lengths=[40, 90, 70], d=4, v=301))


def test_vocabulary_of_one_has_nothing_to_learn(generator):
    got = oasis.head_gram(**problem(generator, lengths=[2, 3], d=4, v=1, masked=0))
    assert (got.gram == 0).all() and (got.loss == 0).all() and (got.entropy == 0).all()
    assert got.correct.tolist() == [2, 3]


@pytest.mark.parametrize("slope", [60.0, -60.0])
def test_running_maximum_over_blocks(slope, generator):
    # Logits that rise (or fall) through the vocabulary move the maximum in every block (or none).
    arguments = problem(generator, lengths=[3, 2, 4], d=6, v=9001)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 9001)
    arguments["hidden"][:, 0] = 1.0
    arguments["labels"] = torch.tensor([0, 1, 4500, 8999, 9000, 9000, 0, 5000, 8000])
    assert_like_reference(arguments)


def test_label_is_the_maximum_of_its_block(generator):
    # The maximum runs over the off-label logits alone, whichever block the label lies in.
    arguments = problem(generator, lengths=[2, 2], d=5, v=9001, masked=0)
    for at in (0, 4095, 4096, 9000):
        arguments["labels"][:] = at
        arguments["weight"][at] = 0
        arguments["weight"][at, 0] = 80.0
        arguments["hidden"][:, 0] = 1.0
        assert_like_reference(arguments)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("softcap", [None, 3.0, 30.0])
@pytest.mark.parametrize("scale", [1.0, 0.125, 2.5])
@pytest.mark.parametrize("with_bias", [False, True])
def test_head_variants(reduction, softcap, scale, with_bias, generator):
    arguments = problem(generator, lengths=[3, 1, 4], d=6, v=37, sharpness=3.0, shuffle=True)
    arguments |= {"reduction": reduction, "softcap": softcap, "scale": scale}
    if with_bias:
        arguments["bias"] = torch.randn(37, generator=generator, dtype=torch.float64)
    got = assert_like_reference(arguments)
    truth = reference.grad_gram(reference.autograd_head_grads(**arguments))
    assert cosine_scaled(got.gram - truth, truth).max() < 1e-10


def test_saturated_softcap(generator):
    arguments = problem(generator, lengths=[3, 4], d=6, v=300, sharpness=20.0)
    assert_like_reference(arguments | {"softcap": 5.0}, rtol=1e-8)


def test_vocabulary_padded_with_minus_infinity(generator):
    # Heads padded to a multiple of 64 switch the padding off through the bias.
    arguments = problem(generator, lengths=[3, 4], d=6, v=300)
    arguments["labels"] = arguments["labels"].where(arguments["labels"] < 290, -100)
    short = arguments | {"weight": arguments["weight"][:290]}
    bias = torch.zeros(300, dtype=torch.float64)
    bias[290:] = -torch.inf
    got, want = oasis.head_gram(**arguments, bias=bias), oasis.head_gram(**short)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-13
    assert_relative(got.entropy, want.entropy, 1e-13)


@pytest.mark.parametrize("softcap", [0.25, 2.0])
def test_minus_infinity_under_a_soft_cap_is_minus_the_cap(softcap, generator):
    """Below a cap of 1 the lowest float64, over the cap, is minus infinity again."""
    arguments = problem(generator, lengths=[3, 4], d=6, v=300)
    bias = torch.zeros(300, dtype=torch.float64)
    bias[200:] = -torch.inf
    assert_like_reference(arguments | {"bias": bias, "softcap": softcap}, rtol=1e-8)


@pytest.mark.parametrize("size", [1e3, 1e5])
def test_huge_logits_do_not_overflow(size, generator):
    arguments = problem(generator, lengths=[3, 4], d=6, v=300, sharpness=size)
    got = oasis.head_gram(**arguments)
    want = reference.head_gram(**arguments)
    assert torch.isfinite(got.gram).all()
    assert_relative(got.gram.diagonal(), want.gram.diagonal(), 1e-9 * size, floor=1e-30)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("v", [61, 5000])
def test_low_precision_is_no_worse_than_autograd(dtype, v, generator):
    arguments = problem(generator, lengths=[4, 1, 7, 3], d=48, v=v, dtype=dtype)
    truth = reference.head_gram(**arguments)
    got = oasis.head_gram(**arguments)
    ours = cosine_scaled(got.gram - truth.gram, truth.gram).max()
    theirs = cosine_scaled(plain_gram(arguments) - truth.gram, truth.gram).max()
    assert ours <= theirs + 1e-6, f"ours {ours:.3g}, plain torch {theirs:.3g}"
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert ours <= bound
    for name in METRICS:
        assert_relative(getattr(got, name), getattr(truth, name), bound)


@pytest.mark.parametrize("margin", [15.0, 20.0, 40.0])
@pytest.mark.parametrize("v", [200, 9001])
def test_confident_tokens_keep_relative_precision(margin, v, generator):
    arguments = confident(
        generator, lengths=[3, 2, 4], d=16, v=v, margin=margin, dtype=torch.float32
    )
    truth = reference.head_gram(**arguments)
    got = oasis.head_gram(**arguments)
    assert truth.gram.diagonal().max() < 0.1
    # float32 logits of this size are themselves uncertain: what a float32 product loses in z
    # is a relative error of p, twice in p^2.
    exact = arguments["hidden"].double() @ arguments["weight"].double().T
    logits = (arguments["hidden"] @ arguments["weight"].T).double()
    bound = 1e-5 + 2 * float((logits - exact).abs().max())
    assert bound < 1e-4
    assert_relative(got.gram.diagonal(), truth.gram.diagonal(), bound)
    assert cosine_scaled(got.gram - truth.gram, truth.gram).max() <= bound
    assert_relative(got.loss, truth.loss, bound)
    exactly = confident(generator, lengths=[3, 2, 4], d=16, v=v, margin=margin, dtype=torch.float64)
    assert_like_reference(exactly)


@pytest.mark.parametrize("dtype", [torch.float64, *LOW], ids=str)
def test_repeats_bit_for_bit(dtype, generator):
    arguments = problem(generator, lengths=[9] * 7, d=33, v=5003, dtype=dtype)
    first = oasis.head_gram(**arguments)
    for _ in range(3):
        again = oasis.head_gram(**arguments)
        assert torch.equal(again.gram, first.gram)
        assert all(torch.equal(getattr(again, m), getattr(first, m)) for m in METRICS)


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    v=st.integers(2, 60),
    seed=st.integers(0, 2**31),
)
def test_symmetric_positive_semidefinite_and_equivariant(lengths, v, seed):
    g = torch.Generator().manual_seed(seed)
    arguments = problem(g, lengths=lengths, d=5, v=v, shuffle=True)
    got = oasis.head_gram(**arguments)
    assert torch.equal(got.gram, got.gram.T)
    assert torch.linalg.eigvalsh(got.gram).min() >= -1e-12 * float(got.gram.diagonal().sum())
    # New names for samples, another order of tokens, another order of the vocabulary.
    name = torch.randperm(len(lengths), generator=g)
    tokens = torch.randperm(sum(lengths), generator=g)
    words = torch.randperm(v, generator=g)
    labels, place = arguments["labels"][tokens], words.argsort()
    moved = oasis.head_gram(
        arguments["hidden"][tokens],
        arguments["weight"][words],
        torch.where(labels == -100, -100, place[labels.clamp(min=0)]),
        name[arguments["sample"][tokens]],
        num_samples=len(lengths),
    )
    back = moved.gram[name][:, name]
    assert cosine_scaled(back - got.gram, got.gram).max() < 1e-12
    assert_relative(moved.loss[name], got.loss, 1e-12)
    assert torch.equal(moved.tokens[name], got.tokens)


def test_metrics_are_the_usual_ones(generator):
    arguments = problem(generator, lengths=[5, 8], d=9, v=40, masked=0.3)
    got = oasis.head_gram(**arguments)
    for i in range(2):
        own = (arguments["sample"] == i) & (arguments["labels"] != -100)
        z, y = arguments["hidden"][own] @ arguments["weight"].T, arguments["labels"][own]
        p = z.softmax(-1)
        assert_relative(got.loss[i], F.cross_entropy(z, y), 1e-12)
        assert_relative(got.perplexity[i], F.cross_entropy(z, y).exp(), 1e-12)
        assert_relative(got.entropy[i], torch.special.entr(p).sum(-1).mean(), 1e-12)
        assert_relative(got.el2n[i], (p - F.one_hot(y, 40)).norm(dim=-1).mean(), 1e-12)
        assert got.correct[i] == (z.argmax(-1) == y).sum()
        assert got.tokens[i] == own.sum()


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_llama_with_lora_equals_per_sample_autograd(padding_side):
    import peft
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(model, lora).double().eval()
    head = model.get_output_embeddings().weight.requires_grad_()

    lengths = [9, 4, 6, 7]
    ids = torch.zeros(4, max(lengths), dtype=torch.int64)
    attention, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for i, n in enumerate(lengths):
        where = slice(max(lengths) - n, None) if padding_side == "left" else slice(n)
        ids[i, where] = torch.randint(1, 97, (n,))
        attention[i, where] = 1
        labels[i, where] = ids[i, where]
        labels[i, where][: n // 2] = -100  # the prompt
    labels[2] = -100  # a sample with no label token

    out = model(ids, attention_mask=attention, output_hidden_states=True)
    hidden, target = out.hidden_states[-1][:, :-1], labels[:, 1:]
    got = oasis.head_gram(
        hidden.reshape(-1, 16),
        head,
        target.reshape(-1),
        torch.arange(4).repeat_interleave(target.shape[1]),
        num_samples=4,
    )

    gradients = torch.zeros(4, 97, 16, dtype=torch.float64)
    for i in (0, 1, 3):
        logits = model(ids[i : i + 1], attention_mask=attention[i : i + 1]).logits[0, :-1]
        loss = F.cross_entropy(logits, labels[i, 1:])  # the model's own loss is float32
        gradients[i] = torch.autograd.grad(loss, head)[0]
        assert_relative(got.loss[i], loss.detach(), 1e-10)
    truth = reference.grad_gram(gradients)
    assert_relative(got.gram.diagonal(), truth.diagonal(), 1e-10)
    assert cosine_scaled(got.gram - truth, truth).max() < 1e-10
    assert got.tokens.tolist() == [(row != -100).sum() for row in target]
    assert (got.gram[2] == 0).all()
