"""Block sizes per architecture: a table, no autotuning (a hot path must not stop to measure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from oasis.gram.rates import ANY as OTHERS
from oasis.gram.rates import CUDA, FLOAT8, HALF, TWICE, Rates, Tile


@dataclass(frozen=True)
class Blocks:
    """Sizes are powers of two.

    rates: of the device, with the tiles that its symmetric products take.
    columns, column_warps: the epilogue's step through a row.
    column_registers, capped_registers: its bounds without and with a soft cap. Left alone, ptxas
        now and then spills a pointer to fit one more program on a multiprocessor.
    tokens: a step through what is one number a token.
    buckets: of a sketch, that one program sums.
    folds: columns of a fold that are summed at a time.
    rows, reduce_columns: tile of the reduction by sample.
    logits: numbers in one block of logits.
    """

    rates: Rates
    columns: int = 2048
    column_warps: int = 8
    column_registers: int = 80
    capped_registers: int = 128
    tokens: int = 256
    buckets: int = 512
    folds: int = 1024
    rows: int = 16
    reduce_columns: int = 32
    logits: int = 32 << 20

    def vocabulary_block(self, tokens: int) -> int:
        """Columns of one block of logits. A multiple of `columns` (hence of any tile's depth)."""
        fitting = min(self.logits // tokens, 16384) // self.columns * self.columns
        return max(self.columns, fitting)


TABLE = {capability: Blocks(rates) for capability, rates in CUDA.items()}
ANY = Blocks(OTHERS)
# The interpreter's cost is per operation on a block, and tests want several blocks of everything.
_TINY = {
    HALF: (Tile(16, 16, 32, 4, 1), Tile(16, 32, 32, 4, 1)),
    TWICE: (Tile(16, 16, 32, 4, 1), Tile(16, 32, 32, 4, 1)),
    FLOAT8: (Tile(16, 16, 32, 4, 1),),
}
INTERPRETER = Blocks(
    replace(OTHERS, processors=4, tiles=_TINY),
    columns=64,
    tokens=8,
    folds=64,
    rows=4,
    reduce_columns=8,
    logits=1024,
)  # fmt: skip


def blocks_for(device: torch.device) -> Blocks:
    if device.type == "cpu":
        return INTERPRETER
    major, minor = torch.cuda.get_device_capability(device)
    blocks = TABLE.get(10 * major + minor, ANY)
    # Of one capability there are cards with more and with fewer of them.
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return replace(blocks, rates=replace(blocks.rates, processors=count))
