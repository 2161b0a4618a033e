"""The Triton kernels of head_gram in Triton's interpreter, on the CPU.

Interpreting is fixed when a kernel is decorated, so test_triton_head.py runs these files each in a
process of its own, with TRITON_INTERPRET=1 and OASIS_HEAD_BACKEND=triton, in tiny blocks
(`INTERPRETER`).
"""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import METRICS, problem
from interpreted import CAPPED_BOUND, HALF_BOUND, assert_like_reference, by_ghost
from oasis.kernels.triton import head as triton_head
from oasis.kernels.triton import visit
from oasis.kernels.triton.blocks import ANY, INTERPRETER, TABLE
from peaked_heads import assert_right, peaked_head
from right_answers import head_arguments, vectors

import oasis
from oasis import reference
from oasis.gram.backends import choice as head_backend

__all__ = ["by_ghost"]  # a fixture of every test here


def test_it_is_triton_that_runs(monkeypatch, generator):
    assert head_backend.choose(torch.device("cpu"))[0] == "triton"
    calls = []
    for name in ("epilogue", "add_products", "results"):
        method = getattr(triton_head.Visit, name)
        monkeypatch.setattr(
            triton_head.Visit,
            name,
            lambda *a, name=name, method=method: calls.append(name) or method(*a),
        )
    oasis.head_gram(**problem(generator, lengths=[2, 3], d=4, v=9, dtype=torch.float32))
    assert calls == ["epilogue", "add_products", "results"]


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
def test_vectors(case):
    got = oasis.head_gram(**head_arguments(case, torch.float32))
    want = torch.tensor(case["gram"], dtype=torch.float64)
    assert_relative(got.gram.diagonal(), want.diagonal(), 1e-6)
    assert cosine_scaled(got.gram - want, want).max() <= 1e-6
    for name in METRICS:
        assert_relative(getattr(got, name), case[name], 1e-6)
    assert got.tokens.tolist() == case["tokens"]


@pytest.mark.parametrize("number", range(len(vectors("head_gram"))))
def test_vectors_in_half_precision(number):
    case, dtype = vectors("head_gram")[number], (torch.bfloat16, torch.float16)[number % 2]
    # The truth for the rounded inputs; logits are exact products of them, summed in float32.
    bound = HALF_BOUND if case["softcap"] is None else CAPPED_BOUND
    assert_like_reference(head_arguments(case, dtype), bound, 1e-5)


@pytest.mark.parametrize(
    "lengths", [[1], [0, 3, 0, 2], [17, 1, 0, 9], [1] * 17, [22, 3, 9]], ids=str
)
@pytest.mark.parametrize("v", [2, 150])
def test_ragged_shapes(lengths, v, generator):
    # 150 columns: several vocabulary blocks, the last one ragged, for all but the shortest.
    shape = {"lengths": lengths, "d": 7, "v": v, "dtype": torch.float32}
    assert_like_reference(problem(generator, **shape, masked=0.1, shuffle=True), 1e-5)


def test_several_blocks_of_everything():
    """What the shapes above rely on."""
    tiles = [tile for choice in INTERPRETER.rates.tiles.values() for tile in choice]
    for tile in tiles:
        assert tile.depth < INTERPRETER.vocabulary_block(17) < 137
    assert {tile.columns for tile in tiles} == {16, 32}
    assert 2 * 16 < 34
    assert 17 > INTERPRETER.reduce_columns > INTERPRETER.rows
    for blocks in (*TABLE.values(), ANY, INTERPRETER):
        for tile in (tile for choice in blocks.rates.tiles.values() for tile in choice):
            assert blocks.columns % tile.depth == 0  # the epilogue's zeros fill the last step
            assert tile.columns in (tile.rows, 2 * tile.rows)
        for tokens in (1, 100, 3200, 10**6):
            assert blocks.vocabulary_block(tokens) % blocks.columns == 0
            assert tokens * blocks.vocabulary_block(tokens) <= max(
                blocks.logits, tokens * blocks.columns
            )


def test_labels_of_every_block_are_gathered(generator):
    # Distinct labels all through the vocabulary, first and last column of a block included.
    arguments = problem(generator, lengths=[11, 9], d=6, v=300, dtype=torch.float32, masked=0)
    block = INTERPRETER.vocabulary_block(20)
    arguments["labels"] = torch.randperm(300, generator=generator)[:20]
    arguments["labels"][:4] = torch.tensor([0, block - 1, block, 299])
    assert_like_reference(arguments, 1e-5)


@pytest.mark.parametrize("slope", [40.0, -40.0])
@pytest.mark.parametrize("softcap", [None, 25.0])
def test_running_maximum_over_blocks(slope, softcap, generator):
    # Logits that rise (or fall) through the vocabulary move the maximum in every block (or none).
    arguments = problem(generator, lengths=[5, 6], d=6, v=301, dtype=torch.float32)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 301)
    arguments["hidden"][:, 0] = 1.0
    arguments["softcap"] = softcap
    assert_like_reference(arguments, 2e-5)


@pytest.mark.parametrize(("softcap", "scale"), [(None, 1.0), (30.0, 4.0), (5.0, -0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_peaks_in_any_block(dtype, softcap, scale):
    arguments = peaked_head(dtype, tokens_per_sample=2, vocabulary=300)
    arguments |= {"softcap": softcap, "scale": scale}
    assert 300 // INTERPRETER.vocabulary_block(len(arguments["labels"])) >= 4
    got, want = oasis.head_gram(**arguments), reference.head_gram(**arguments)
    half = HALF_BOUND if softcap is None else CAPPED_BOUND
    assert_right(got, want, 2e-5 if dtype == torch.float32 else half, metrics=2e-5)


def test_vocabulary_of_one_has_nothing_to_learn(generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=1, masked=0, dtype=torch.float32)
    got = oasis.head_gram(**arguments)
    assert (got.gram == 0).all() and (got.loss == 0).all() and (got.entropy == 0).all()
    assert got.correct.tolist() == [2, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_sample_stays_in_its_row(bad, generator):
    arguments = problem(generator, lengths=[3, 2, 6], d=4, v=200, masked=0, dtype=torch.float32)
    clean = oasis.head_gram(**arguments)
    arguments["hidden"][4, 1] = bad
    got = oasis.head_gram(**arguments)
    others = [0, 2]
    assert torch.equal(got.gram[others][:, others], clean.gram[others][:, others])
    for name in METRICS:
        assert torch.equal(getattr(got, name)[others], getattr(clean, name)[others]), name
    assert torch.equal(got.correct[others], clean.correct[others])
    assert not torch.isfinite(got.gram[1, 1])


def test_repeats_bit_for_bit_and_masked_tokens_may_hold_anything(generator):
    arguments = problem(generator, lengths=[9, 1, 11], d=5, v=150, dtype=torch.bfloat16)
    first = oasis.head_gram(**arguments)
    arguments["hidden"][arguments["labels"] == -100] = float("nan")
    again = oasis.head_gram(**arguments)
    assert torch.equal(again.gram, first.gram)
    assert all(torch.equal(getattr(again, m), getattr(first, m)) for m in METRICS)


def unchecked(arguments):
    """The kernels on arguments that `oasis.head_gram` would refuse here, and not on a GPU."""
    order = ("hidden", "weight", "labels", "sample", "num_samples")
    return oasis.HeadGram(
        *triton_head.head_gram(*(arguments[k] for k in order), None, 0.0, 1.0, True, (0, 0))[:6]
    )


@pytest.mark.parametrize("label", [-1, -101, 200, 2**40])
def test_a_label_outside_spoils_its_sample_alone(label, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=200, masked=0, dtype=torch.float32)
    clean = unchecked(arguments)
    arguments["labels"][4] = label
    got = unchecked(arguments)
    others = torch.tensor([0, 2])
    assert torch.equal(got.gram[others][:, others], clean.gram[others][:, others])
    assert got.gram[1].isnan().all() and got.gram[:, 1].isnan().all()
    for name in METRICS:
        assert getattr(got, name)[1].isnan()
        assert torch.equal(getattr(got, name)[others], getattr(clean, name)[others]), name


@pytest.mark.parametrize("owner", [-1, 3, 2**40])
def test_a_sample_that_does_not_exist_spoils_all(owner, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=90, masked=0, dtype=torch.float32)
    arguments["sample"][4] = owner
    got = unchecked(arguments)
    assert got.gram.isnan().all() and got.loss.isnan().all()


def test_more_samples_than_a_grid_has_rows(generator, monkeypatch):
    arguments = problem(generator, lengths=[3, 0, 2, 4, 1], d=4, v=90, dtype=torch.float32)
    want = oasis.head_gram(**arguments)
    monkeypatch.setattr(visit, "MAX_GRID", 2)
    assert torch.equal(oasis.head_gram(**arguments).gram, want.gram)


def test_float64_is_refused(generator):
    with pytest.raises(ValueError, match=r"OASIS_HEAD_BACKEND=triton: got torch.float64, expected"):
        oasis.head_gram(**problem(generator, lengths=[2, 3], d=4, v=9))
