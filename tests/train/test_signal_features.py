"""Features of a batch's hidden states, and what images and texts have in common."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from comparing import close
from padded_rows import LENGTHS, alone, padded
from tiny_models import PAD, tiny_llama, tiny_model
from tiny_vision import IMAGE, llava

from oasis.train.frozen.blocks import evenly, running_blocks
from oasis.train.frozen.prefix import Skip, freeze_below
from oasis.train.head import Head
from oasis.train.signals.compute import compute


@pytest.mark.parametrize("side", ["left", "right"])
def test_features_are_means_over_what_is_not_padding(side):
    model, batch = tiny_llama(num_hidden_layers=10), padded(side)
    got = compute(model, batch, Head(), frozenset({"features", "features_multi"}))
    assert got["features"].shape == (5, 32) and got["features_multi"].shape == (5, 5, 32)
    last = []
    running_blocks(model)[9].register_forward_hook(lambda m, args, out: last.append(out))
    for row, length in enumerate(LENGTHS):
        one = alone(batch, row)
        del one["labels"]
        states = model(**one, use_cache=False, output_hidden_states=True).hidden_states
        assert states[0].shape[1] == length
        assert close(got["features"][row], states[-1][0].mean(dim=0))
        # transformers puts the last norm behind the tenth block's states: those by a hook.
        for index, after in enumerate([*states[2:10:2], last[-1]]):
            assert close(got["features_multi"][row, index], after[0].mean(dim=0))


@pytest.mark.parametrize("blocks", [2, 5, 6])
def test_cached_blocks_give_the_features_that_running_ones_give(blocks):
    model = tiny_model(num_hidden_layers=7, pad_token_id=PAD)
    batch, needs = padded("left"), frozenset({"features", "features_multi"})
    plain = compute(model, batch, Head(), needs, 3)
    assert evenly(7) == [1, 2, 4, 5, 6]
    prefix = freeze_below(model, blocks, PAD)
    assert sum(isinstance(b, Skip) for b in model.model.layers) == blocks
    assert running_blocks(model) == list(model.model.layers[blocks:])
    got = compute(model, batch, Head(), needs, 3)
    assert got["features_multi"].shape == (3, 5, 32)
    for name in needs:
        assert close(got[name], plain[name])
    runs = []
    prefix.lower.register_forward_hook(lambda *args: runs.append(1))
    again = compute(model, batch, Head(), needs, 3)
    assert not runs and torch.equal(again["features_multi"], got["features_multi"])


def test_evenly():
    assert evenly(10) == [1, 3, 5, 7, 9] and evenly(5) == [0, 1, 2, 3, 4]
    assert evenly(30) == [5, 11, 17, 23, 29] and evenly(1) == [0] * 5


def test_image_text_score():
    model = llava(torch.float32)
    ids = torch.tensor([[5, *[IMAGE] * 4, 6, 7, 8], [0, 0, 0, 0, 9, 10, 11, 12]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.clone()}
    batch["labels"][ids == IMAGE] = -100
    batch["pixel_values"] = torch.randn(1, 3, 8, 8)
    needs = frozenset({"image_text_score", "features", "features_multi"})
    got = compute(model, batch, Head(), needs)
    # The vision tower has as many blocks as the text model: its are not meant.
    assert got["features_multi"].shape == (2, 5, 32)
    assert running_blocks(model)[0] is model.model.language_model.layers[0]
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    hidden = model(**inputs, output_hidden_states=True).hidden_states[-1][0]
    expected = F.cosine_similarity(hidden[1:5].mean(dim=0), hidden[[0, 5, 6, 7]].mean(dim=0), dim=0)
    assert torch.isclose(got["image_text_score"][0], expected, rtol=1e-5)
    assert got["image_text_score"][1].isnan()
    text = {k: v[1:] for k, v in batch.items() if k != "pixel_values"}
    assert compute(model, text, Head(), needs)["image_text_score"] is None
