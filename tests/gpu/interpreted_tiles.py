"""The symmetric product in all tilings, and float8, interpreted (see interpreted_head.py)."""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled
from head_problems import METRICS, problem
from interpreted import HALF_BOUND, assert_like_reference, by_ghost
from oasis.kernels.triton import visit
from oasis.kernels.triton.blocks import INTERPRETER
from peaked_heads import assert_right, peaked_head

import oasis
from oasis import reference
from oasis.gram.rates import FLOAT8, HALF, TWICE, Tile
from oasis.gram.tiles import Tiling, choose

__all__ = ["by_ghost"]  # a fixture of every test here
# Unit roundoff 2^-4 on both sides, over |delta|^2 >= 2 |E|^2.
FLOAT8_BOUND = 2.0**-4


@pytest.fixture(params=[(16, 3), (32, 1), (32, 2)], ids=str)
def tiling(request, monkeypatch):
    """Every product of E in tiles of 16 rows by so many columns and in so many parts."""
    columns, parts = request.param
    taken = []

    def fixed(rates, entries, tokens, size):
        taken.append(entries)
        return Tiling(Tile(16, columns, 32, 4, 1), parts, tokens, 0.0)

    monkeypatch.setattr(visit, "choose", fixed)
    yield taken
    assert taken, "no product of E"


# A whole tile, a row more, and 49 rows, which leave a last group with one tile of rows.
@pytest.mark.parametrize(
    ("lengths", "dtype"),
    [([16], torch.float32), ([8, 9], torch.float16), ([17, 1, 22, 9], torch.float32)],
    ids=str,
)
def test_any_tiling_is_right(lengths, dtype, tiling, generator):
    # Blocks of 64 columns, a ragged last one; three parts of 32 columns, the last one empty.
    arguments = problem(generator, lengths=lengths, d=7, v=150, dtype=dtype, masked=0)
    assert_like_reference(arguments, 1e-5 if dtype == torch.float32 else HALF_BOUND, 1e-5)
    assert tiling == [TWICE if dtype == torch.float32 else HALF]


@pytest.mark.parametrize(
    ("tiling", "softcap", "scale"),
    [((16, 3), 5.0, -0.5), ((32, 2), None, 1.0)],
    indirect=["tiling"],
)
def test_peaks_in_every_block(softcap, scale, tiling):
    arguments = peaked_head(torch.float32, tokens_per_sample=2, vocabulary=300)
    arguments |= {"softcap": softcap, "scale": scale}
    assert 300 // INTERPRETER.vocabulary_block(len(arguments["labels"])) >= 4
    got = oasis.head_gram(**arguments)
    assert_right(got, reference.head_gram(**arguments), 2e-5)


def test_the_interpreter_takes_tiles_of_both_kinds():
    taken = {choose(INTERPRETER.rates, HALF, tokens, 64).tile.columns for tokens in (9, 40)}
    assert taken == {16, 32}


# ---- float8 -------------------------------------------------------------------------------------


def float8(arguments, **options):
    return oasis.head_gram(**arguments, method="float8", **options)


@pytest.mark.parametrize(
    ("tiling", "softcap", "dtype"),
    [((16, 1), None, torch.float32), ((32, 2), 5.0, torch.bfloat16)],
    indirect=["tiling"],
)
def test_float8_lies_within_its_rounding(softcap, dtype, tiling, generator):
    arguments = problem(
        generator, lengths=[9, 0, 8], d=8, v=150, dtype=dtype, sharpness=2.0, shuffle=True
    )
    arguments["softcap"] = softcap
    got, want = float8(arguments, sketch=48), reference.head_gram(**arguments)
    assert tiling == [FLOAT8] and got.method == "float8"
    assert torch.equal(got.gram, got.gram.T)
    error = cosine_scaled(got.gram - want.gram, want.gram).max()
    assert 1e-6 < error < (1 if softcap is None else 2) * FLOAT8_BOUND
    exact = oasis.head_gram(**arguments, method="ghost", sketch=48)
    for name in (*METRICS, "correct", "tokens"):
        assert torch.equal(getattr(got, name), getattr(exact, name)), name
    off = (got.sketch - exact.sketch).norm(dim=1)
    assert (off <= FLOAT8_BOUND * exact.sketch.norm(dim=1)).all() and off.max() > 0


def test_float8_is_exact_where_the_peaks_are_all():
    # What a token takes for right is its largest entry, 256 in float8, whichever block it lies in.
    peaks = torch.tensor([3, 70, 149, 70])
    weight = torch.zeros(150, 4).index_put((peaks, torch.arange(4)), torch.tensor(60.0))
    arguments = {"hidden": torch.eye(4) + 0.25, "weight": weight, "num_samples": 4}
    arguments |= {"labels": torch.tensor([5, 3, 70, 100]), "sample": torch.arange(4)}
    got, want = float8(arguments), reference.head_gram(**arguments)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-6


def test_float8_repeats_and_keeps_a_bad_sample_in_its_row(generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=90, masked=0, dtype=torch.float32)
    clean = float8(arguments)
    assert torch.equal(float8(arguments).gram, clean.gram)
    arguments["hidden"][4, 1] = float("nan")
    got = float8(arguments)
    assert torch.equal(got.gram[[0, 2]][:, [0, 2]], clean.gram[[0, 2]][:, [0, 2]])
    assert not torch.isfinite(got.gram[1, 1])
