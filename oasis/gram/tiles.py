"""The symmetric product of E on a GPU: which tile, and into how many parts a block's columns go.

A program owns one tile of the lower triangle and one part of the columns, whose sums are kept apart
until the vocabulary has been seen. A wide tile reads less from the L2 cache, which binds; parts
fill the multiprocessors where tiles are few, or a little more than a multiple of theirs. Counted,
not measured (bench/NOTES-head-gram-gpu.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from oasis.gram.rates import Entries, Rates, Tile

MOST_PARTS = 16
LEAST_COLUMNS = 512  # of a part: the pipeline fills in two or three steps of 64
LARGEST = 32 << 20  # numbers of all parts' sums, as of a block of logits
FILLING = 2e-6  # seconds until the programs of a wave multiply


@dataclass(frozen=True)
class Tiling:
    """Of T tokens: `groups` of `tile.columns` tokens, and what is multiplied of them.

    parts: of a block's columns. seconds: that one block of columns is predicted to take.
    """

    tile: Tile
    parts: int
    tokens: int
    seconds: float

    @property
    def groups(self) -> int:
        return -(-self.tokens // self.tile.columns)

    @property
    def side(self) -> int:
        """Tokens in whole tiles."""
        return self.groups * self.tile.columns

    @property
    def programs(self) -> int:
        """Of one part: tiles of the lower triangle. Those of padding alone return at once."""
        return self.tile.columns // self.tile.rows * self.groups * (self.groups + 1) // 2

    def part(self, columns: int) -> int:
        """Columns of a part, whole steps."""
        return -(-columns // (self.parts * self.tile.depth)) * self.tile.depth


def working(tile: Tile, tokens: int) -> int:
    """Tiles of the lower triangle that have tokens."""
    wide = tile.columns // tile.rows
    return sum(i // wide + 1 for i in range(-(-tokens // tile.rows)))


def predicted(
    rates: Rates, entries: Entries, tile: Tile, parts: int, tokens: int, columns: float
) -> float:
    """Seconds of one block: waves of programs, each as slow as its flops or all their bytes from
    L2; and the sums, read and written once."""
    depth = columns / parts
    flops = 2 * tile.rows * tile.columns * depth * entries.products
    alone = flops * rates.processors / rates.half
    read = (tile.rows + tile.columns) * depth * entries.size / rates.l2
    programs = parts * working(tile, tokens)
    waves, rest = divmod(programs, rates.processors)
    seconds = waves * (FILLING + max(alone, rates.processors * read))
    if rest:
        seconds += FILLING + max(alone, rest * read)
    return seconds + programs * tile.rows * tile.columns * 8 / rates.traffic


@cache
def choose(rates: Rates, entries: Entries, tokens: int, columns: int) -> Tiling:
    """The tiling that is predicted to be fastest; of equals the first tile and the fewest parts."""
    options = [
        Tiling(tile, parts, tokens, predicted(rates, entries, tile, parts, tokens, columns))
        for tile in rates.tiles[entries]
        for parts in range(1, MOST_PARTS + 1)
        if parts == 1 or columns >= parts * LEAST_COLUMNS
    ]
    fitting = [x for x in options if x.parts == 1 or x.parts * x.side**2 <= LARGEST]
    return min(fitting, key=lambda x: x.seconds)
