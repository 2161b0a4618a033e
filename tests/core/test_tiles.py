"""Which tile of E's symmetric product a GPU takes, and in how many parts: counted, not run."""

from __future__ import annotations

import pytest

from oasis.gram.rates import ANY, CUDA, HALF, TWICE
from oasis.gram.tiles import LARGEST, Tiling, choose, predicted, working


def block(tokens: int) -> int:
    """Columns of a block of logits, as the kernels have them."""
    return max(2048, min((32 << 20) // tokens, 16384) // 2048 * 2048)


def chosen(card, tokens, entries=HALF):
    return choose(CUDA[card], entries, tokens, block(tokens))


@pytest.mark.parametrize("wide", [1, 2])
@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 255, 256, 257, 3200])
def test_every_pair_of_tokens_is_multiplied_once(tokens, wide):
    tile = CUDA[90].tiles[HALF][wide - 1]
    assert tile.columns == wide * tile.rows
    tiling = Tiling(tile, 1, tokens, 0.0)
    assert tokens <= tiling.side < tokens + tile.columns
    covered = 0
    for p in range(tiling.programs):  # as `products_kernel` has them
        i = int(((8 * (p // wide) + 1) ** 0.5 - 1) / 2)
        row = (i * wide + p % wide) * tile.rows
        other = (p // wide - i * (i + 1) // 2) * tile.columns
        assert other <= row < tiling.side
        covered += row < tokens
    assert covered == working(tile, tokens)


def test_wide_tiles_are_taken_where_the_cache_binds():
    assert [chosen(90, t).tile.columns for t in (64, 512, 3200, 8192)] == [128, 128, 256, 256]
    assert [chosen(80, t).tile.columns for t in (64, 512, 3200, 8192)] == [128] * 4


@pytest.mark.parametrize("card", CUDA)
@pytest.mark.parametrize("entries", [HALF, TWICE], ids=["half", "twice"])
def test_few_tiles_are_cut_along_the_vocabulary(entries, card):
    rates = CUDA[card]
    assert chosen(card, 1, entries).parts == chosen(card, 64, entries).parts == 16
    small = chosen(card, 512, entries)
    assert 0.3 * rates.processors <= small.parts * working(small.tile, 512) <= rates.processors
    assert chosen(card, 8192, entries).parts == 1
    for tokens in (1, 100, 512, 1600, 3200, 16384, 100_000):
        tiling = chosen(card, tokens, entries)
        assert tiling.parts == 1 or tiling.parts * tiling.side**2 <= LARGEST
        columns = block(tokens)
        assert tiling.parts * tiling.part(columns) >= columns
        assert tiling.part(columns) % tiling.tile.depth == 0
        for tile in rates.tiles[entries]:
            one = predicted(rates, entries, tile, 1, tokens, columns)
            assert tiling.seconds <= one


def test_any_other_card_has_a_tiling():
    assert choose(ANY, HALF, 3200, 10240).tile.columns == 64


def test_within_half_again_of_the_floor():
    # T = 3200, D = 4096, V = 128256 in bfloat16; bench/NOTES-head-gram-gpu.md has the other rows.
    logits, gram = 2 * 3200 * 128256 * 4096, 3200**2 * 128256
    floor = (logits + gram) / CUDA[90].half
    products = chosen(90, 3200).seconds * 128256 / 10240
    assert products < 3.8e-3
    others = logits / CUDA[90].half + 1.2e-3 + 0.1e-3
    assert (others + products) / floor < 1.5
