"""Block sizes per architecture: a table, no autotuning (a hot path must not stop to measure)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Blocks:
    """Sizes are powers of two.

    tile, depth: one program of the symmetric Gram owns tile x tile numbers and steps through the
        vocabulary by depth.
    warps, stages: its warps, and its pipeline depth with one plane of E and with two.
    columns, column_warps: the epilogue's step through a row.
    column_registers, capped_registers: its bounds without and with a soft cap. Left alone, ptxas
        now and then spills a pointer to fit one more program on a multiprocessor.
    tokens: a step through what is one number a token.
    buckets: of a sketch, that one program sums.
    folds: columns of a fold that are summed at a time.
    rows, reduce_columns: tile of the reduction by sample.
    logits: numbers in one block of logits.
    """

    tile: int
    depth: int
    warps: int
    stages: tuple[int, int]
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
        """Columns of one block of logits. A multiple of `columns` (hence of `depth`)."""
        fitting = min(self.logits // tokens, 16384) // self.columns * self.columns
        return max(self.columns, fitting)


# A100: 164 KB of shared memory; H100, B200: 227 KB. One stage holds two tiles of each plane in use,
# 4 tile depth bytes a plane.
TABLE = {
    80: Blocks(tile=128, depth=64, warps=8, stages=(3, 3)),
    90: Blocks(tile=128, depth=64, warps=8, stages=(4, 3)),
    100: Blocks(tile=128, depth=64, warps=8, stages=(4, 2)),
}
ANY = Blocks(tile=64, depth=32, warps=4, stages=(3, 3))  # 99 KB of shared memory (8.6, 8.9, 12.0)
# The interpreter's cost is per operation on a block, and tests want several blocks of everything.
INTERPRETER = Blocks(
    tile=16,
    depth=32,
    warps=4,
    stages=(1, 1),
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
    return TABLE.get(10 * major + minor, ANY)
