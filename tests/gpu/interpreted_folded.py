"""The Triton kernels of the folded regime in Triton's interpreter (see interpreted_head.py)."""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled
from head_problems import problem
from interpreted import same_metrics
from oasis.kernels.triton.blocks import INTERPRETER

import oasis
from oasis import reference

HALF_BOUND = 2.0**-10  # folds and label columns are rounded to float16, as E of "ghost" is


def folded(arguments, dim, seed=0, **options):
    return oasis.head_gram(**arguments, method="folded", sketch_dim=dim, seed=seed, **options)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, HALF_BOUND)], ids=str
)
@pytest.mark.parametrize(("softcap", "slope"), [(None, 40.0), (None, -40.0), (5.0, 20.0)])
def test_nothing_folded_is_exact(softcap, slope, dtype, rtol, generator):
    # 160 columns: three blocks of the vocabulary, the last one ragged, in each another peak.
    arguments = problem(
        generator, lengths=[9, 0, 5, 1], d=6, v=160, dtype=dtype, masked=0.2, shuffle=True
    )
    arguments["weight"][:, 0] = torch.linspace(0, slope, 160)
    arguments["hidden"][:, 0] = 1.0
    arguments |= {"softcap": softcap, "scale": 0.75}
    arguments["bias"] = torch.randn(160, generator=generator).to(dtype)
    assert INTERPRETER.vocabulary_block(15) * 2 < 160 and 200 % INTERPRETER.folds
    got, want = folded(arguments, 200), reference.head_gram(**arguments)
    assert torch.equal(got.gram, got.gram.T)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() <= rtol
    same_metrics(got, want, 1e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float16, 1e-3)])
@pytest.mark.parametrize("dim", [37, 96])
def test_the_fold_is_that_of_other_backends(dim, dtype, rtol, monkeypatch, generator):
    # Several runs of a sketch in a block, and runs that two blocks share; labels that repeat.
    arguments = problem(generator, lengths=[7, 0, 9, 3], d=8, v=150, dtype=dtype, sharpness=2.0)
    arguments["labels"][:4] = torch.tensor([5, 5, 149, 5])
    got = folded(arguments, dim, 3, sketch=48)
    assert torch.equal(folded(arguments, dim, 3, sketch=48).gram, got.gram), "other bits"
    monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    want = folded(arguments, dim, 3, sketch=48)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() <= rtol
    same_metrics(got, want, 1e-5)
    norm = want.sketch.norm(dim=1)
    assert ((got.sketch - want.sketch).norm(dim=1) <= 1e-4 * norm).all()
    assert (got.gram[1] == 0).all() and (got.sketch[1] == 0).all()
