"""The epilogue of `head_gram` in Triton: an `oasis.gram.backends.epilogue.Epilogue`.

It differs in two ways. The logits of low-precision inputs come straight from tensor cores
(nothing is widened first), and the symmetric product is its own kernel (`add_products`).
All launches go to the current stream of the tensors' device and nothing synchronises.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from oasis.kernels.triton.blocks import Blocks, blocks_for
from oasis.kernels.triton.head_epilogue import epilogue_kernel
from oasis.kernels.triton.head_products import products_kernel
from oasis.kernels.triton.head_reduce import reduce_kernel
from torch import Tensor

from oasis.gram.tensor_sketch import VocabularySketch


def _up(x: int, step: int) -> int:
    return -(-x // step) * step


class Epilogue:
    def __init__(
        self,
        labels: Tensor,  # [T] int64
        label_index: Tensor,  # [T] int64, where in `distinct` a token's label is
        distinct: Tensor,  # int64, ascending
        bias: Tensor | None,  # [V] float32
        scale: float,
        softcap: float,  # 0 means none
        dtype: torch.dtype,  # of hidden and weight
        sketches: Sequence[VocabularySketch] = (),
        blocks: Blocks | None = None,
    ):
        self.labels, self.label_index, self.distinct = labels, label_index, distinct
        self.bias, self.scale, self.softcap = bias, scale, softcap
        self.blocks = blocks or blocks_for(labels.device)
        # What rounding E to float16 loses is far below what half-precision inputs carry; float32
        # inputs keep their precision with a second plane.
        self.planes = 2 if dtype == torch.float32 else 1
        tokens = labels.numel()
        zeros = labels.new_zeros(tokens, dtype=torch.float64)
        self.token = {f: zeros.clone() for f in ("label_logit", "sum", "weighted", "squares")}
        self.token["peak"] = zeros - torch.inf
        for f in ("ridge", "maximum"):  # without a soft cap all three are one
            self.token[f] = zeros - torch.inf if softcap else self.token["peak"]
        self.side = _up(tokens, self.blocks.tile)  # rows and columns of `products`, whole tiles
        self.factor = zeros.new_zeros(self.side, dtype=torch.float32)
        self.gathers = self.factor.new_empty((tokens, distinct.numel()))
        self.entries = None
        self.tables = sketches
        self.sums = [self.gathers.new_zeros((tokens, s.dim)) for s in sketches]

    def vocabulary_block(self) -> int:
        return self.blocks.vocabulary_block(self.labels.numel())

    def _device(self):
        device = self.labels.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def block(self, logits: Tensor, first: int, products: Tensor) -> None:
        """Takes a block of logits in; `add_products` then adds its products."""
        tokens, columns = logits.shape
        blocks, token = self.blocks, self.token
        if self.entries is None:  # the first block is the largest; zero rows pad the last tile
            shape = (self.planes, self.side, _up(columns, blocks.columns))
            self.entries = self.factor.new_zeros(shape, dtype=torch.float16)
        with self._device():
            epilogue_kernel[(tokens,)](
                logits,
                logits.stride(0),
                self.entries,
                self.entries.stride(0),
                self.entries.stride(1),
                logits if self.bias is None else self.bias,
                self.labels,
                self.distinct,
                self.gathers,
                token["label_logit"],
                token["peak"],
                token["ridge"],
                token["maximum"],
                token["sum"],
                token["weighted"],
                token["squares"],
                self.factor,
                first,
                columns,
                self.distinct.numel(),
                self.scale,
                self.softcap,
                HAS_BIAS=self.bias is not None,
                HAS_CAP=self.softcap != 0,
                PLANES=self.planes,
                BLOCK=blocks.columns,
                num_warps=blocks.column_warps,
                maxnreg=blocks.column_registers,
            )
        for table, sums in zip(self.tables, self.sums, strict=True):
            entries = self.entries[:, :tokens, :columns].float().sum(0)
            sums *= self.factor[:tokens].unsqueeze(1)
            table.add(sums, entries, first)

    def sketched(self) -> list[Tensor]:
        """Per table, [T, m]: the sketch of E so far, relative to the ridge as it stands."""
        return self.sums

    def add_products(self, products: Tensor, logits: Tensor) -> None:
        """products <- factor products factor^T + E E^T, E what `block` made of these logits."""
        blocks = self.blocks
        tiles = self.side // blocks.tile
        with self._device():
            products_kernel[(tiles * (tiles + 1) // 2,)](
                self.entries,
                self.entries.stride(0),
                self.entries.stride(1),
                products,
                self.factor,
                self.side,
                logits.shape[1],
                PLANES=self.planes,
                TILE=blocks.tile,
                DEPTH=blocks.depth,
                num_warps=blocks.warps,
                num_stages=blocks.stages[self.planes - 1],
            )

    def reduce(
        self, products: Tensor, inner: Tensor, offsets: Tensor, tilt: Tensor, label: Tensor
    ) -> Tensor:
        """K_ij = sum of <delta_t, delta_s> <h_t, h_s>, t in i, s in j (docs/method.md 1.1)."""
        rows, tokens, samples = self.blocks.rows, self.labels.numel(), offsets.numel() - 1
        # Row tiles of each sample; their number is known on the device only, its bound here.
        tiles = (offsets.diff() + rows - 1) // rows
        ends = tiles.cumsum(0)
        tile = torch.arange(tokens // rows + samples, device=offsets.device)
        tile_sample = torch.searchsorted(ends, tile, right=True)
        owner = tile_sample.clamp(max=samples - 1)
        tile_first = offsets[owner] + (tile - (ends - tiles)[owner]) * rows
        partial = tilt.new_zeros((tile.numel(), samples))
        with self._device():
            reduce_kernel[(tile.numel(), samples)](
                products,
                inner,
                self.gathers,
                self.label_index,
                self.token["ridge"],
                tilt.contiguous(),
                label.contiguous(),
                offsets,
                tile_sample,
                tile_first,
                partial,
                self.side,
                tokens,
                self.distinct.numel(),
                samples,
                self.softcap,
                HAS_CAP=self.softcap != 0,
                ROWS=rows,
                COLUMNS=self.blocks.reduce_columns,
                num_warps=4,
            )
        lower = torch.segment_reduce(partial, "sum", lengths=tiles, initial=0, unsafe=True)
        lower = lower.tril()
        return lower + lower.tril(-1).T
