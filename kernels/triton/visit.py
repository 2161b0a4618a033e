"""T tokens on their way through the vocabulary with the Triton kernels, and by sample.

All launches go to the current stream of the tensors' device, and no size depends on a value:
nothing waits, and a CUDA graph can capture all of it.
"""

from __future__ import annotations

import torch
from oasis.kernels.triton.blocks import Blocks
from oasis.kernels.triton.head_epilogue import STATE, epilogue_kernel
from oasis.kernels.triton.head_products import products_kernel
from oasis.kernels.triton.head_reduce import reduce_kernel, samples_kernel
from oasis.kernels.triton.head_results import RESULTS, results_kernel
from oasis.kernels.triton.head_segments import keys_kernel, segments_kernel
from oasis.kernels.triton.head_sketch import sketch_kernel
from oasis.kernels.triton.head_sketched import sketch_samples_kernel, sketch_tokens_kernel
from torch import Tensor

from oasis.gram.algebra import multiply
from oasis.gram.rates import Entries
from oasis.gram.tensor_sketch import VocabularySketch, convolved, width_sketch
from oasis.gram.tiles import Tiling, choose

MAX_GRID = 65535  # of a launch in its second dimension


def _up(x: int, step: int) -> int:
    return -(-x // step) * step


class Segments:
    """The T tokens by sample. `order` [T] int64 is where each of them was."""

    def __init__(
        self, labels: Tensor, sample: Tensor, samples: int, vocabulary: int, blocks: Blocks
    ):
        self.count, self.samples, self.blocks = labels.numel(), samples, blocks
        self.size = min(blocks.vocabulary_block(self.count), vocabulary)  # columns of a block
        parts = -(-vocabulary // self.size)
        self.poison = labels.new_empty(1, dtype=torch.float64)
        keys = labels.new_empty((2, self.count), dtype=torch.int32)
        step = blocks.tokens
        keys_kernel[(1,)](
            labels.contiguous(), sample.contiguous(), keys, self.poison, self.count, samples,
            vocabulary, BLOCK=step,
        )  # fmt: skip
        ordered, order = torch.sort(keys, dim=1, stable=True)
        self.owner, self.ordered_labels = ordered.unbind()
        self.order = order[0]
        self.labels, self.label_index = torch.empty_like(keys).unbind()
        self.offsets = keys.new_empty(samples + 1)
        self.bounds = keys.new_empty(parts + 1)
        longest = max(self.count, samples + 1, parts + 1)
        segments_kernel[(-(-longest // step),)](
            keys, ordered, order, self.labels, self.label_index, self.offsets, self.bounds,
            self.count, samples, parts, self.size, self.count.bit_length(), BLOCK=step,
        )  # fmt: skip


class Visit:
    """The state of T tokens on their way through the vocabulary (docs/method.md 1.2)."""

    def __init__(
        self,
        segments: Segments,
        bias: Tensor | None,
        softcap: float,
        scale: float,
        entries: Entries,
        table: VocabularySketch | None,
    ):
        self.segments, self.blocks = segments, segments.blocks
        self.bias = None if bias is None else bias.float().contiguous()
        self.softcap, self.scale = softcap, scale
        self.kind = entries
        count = segments.count
        self.state = segments.poison.new_empty((STATE, count))
        self.gathers = self.state.new_empty((count, count), dtype=torch.float32)
        self.of_token = self.state.new_empty((RESULTS, count))
        self.table = table
        self.sketches = self.gathers.new_empty((count, table.dim if table else 0))

    def vocabulary(self, h: Tensor, weight: Tensor) -> Tensor:
        """Sums of E E^T over all columns, [side, side], the lower half."""
        s, kind, size = self.segments, self.kind, self.segments.size
        tiling = choose(self.blocks.rates, kind, s.count, size)
        side = tiling.side
        self.factor = self.gathers.new_zeros(side)
        products = self.gathers.new_zeros((tiling.parts, side, side))
        # Zero rows pad the last tile.
        width = _up(size, self.blocks.columns) * kind.dtype.itemsize
        zeros = self.gathers.new_zeros((kind.planes, side, width), dtype=torch.uint8)
        self.entries = zeros.view(kind.dtype)
        for first in range(0, weight.shape[0], size):
            logits = multiply(h, weight[first : first + size].T)
            self.epilogue(logits, first)
            self.add_sketches(first, logits.shape[1])
            self.add_products(products, tiling, logits.shape[1])
            del logits  # before the next block takes memory
        return products[0] if tiling.parts == 1 else products.sum(0)

    def epilogue(self, logits: Tensor, first: int) -> None:
        """Takes in the logits [T, C] of columns `first`, ...; their E is left in `entries`."""
        s, blocks = self.segments, self.blocks
        epilogue_kernel[(s.count,)](
            logits,
            logits.stride(0),
            self.entries,
            self.entries.stride(0),
            self.entries.stride(1),
            logits if self.bias is None else self.bias,
            s.labels,
            s.ordered_labels,
            s.bounds[first // s.size :],
            self.gathers,
            self.state,
            self.factor,
            first,
            logits.shape[1],
            s.count,
            self.scale,
            self.softcap,
            HAS_BIAS=self.bias is not None,
            HAS_CAP=self.softcap != 0,
            PLANES=self.kind.planes,
            UNIT=self.kind.unit,
            BLOCK=blocks.columns,
            num_warps=blocks.column_warps,
            maxnreg=blocks.capped_registers if self.softcap else blocks.column_registers,
        )

    def add_sketches(self, first: int, columns: int) -> None:
        """Adds E of `epilogue` to the sketches of the tokens."""
        if self.table is None:
            return
        dim, step = self.table.dim, self.blocks.buckets
        sketch_kernel[(self.segments.count, -(-dim // step))](
            self.entries, self.entries.stride(0), self.entries.stride(1), self.factor,
            self.table.buckets, self.table.signs, self.sketches, first, columns, dim,
            PLANES=self.kind.planes, UNIT=self.kind.unit, BUCKETS=step,
        )  # fmt: skip

    def add_products(self, products: Tensor, tiling: Tiling, columns: int) -> None:
        """products <- factor products factor^T + E E^T, E what `epilogue` made of its logits."""
        tile = tiling.tile
        products_kernel[(tiling.programs, tiling.parts)](
            self.entries, self.entries.stride(0), self.entries.stride(1), products, self.factor,
            self.segments.count, tiling.side, columns, tiling.part(columns),
            PLANES=self.kind.planes, UNIT=self.kind.unit, ROWS=tile.rows, COLUMNS=tile.columns,
            DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def results(self, products: Tensor, inner: Tensor, mean: bool) -> tuple[Tensor, ...]:
        """(gram, loss, entropy, el2n, correct, tokens) by sample."""
        s, blocks = self.segments, self.blocks
        n, rows, capped = s.samples, blocks.rows, self.softcap != 0
        of_token = self.of_token
        results_kernel[(-(-s.count // blocks.tokens),)](
            self.state, s.labels, s.owner, s.offsets, of_token, s.count, n, self.scale,
            self.softcap, MEAN=mean, HAS_CAP=capped, BLOCK=blocks.tokens,
        )  # fmt: skip
        tiles = s.count // rows + n
        partial = of_token.new_empty((tiles, n))
        for first in range(0, n, MAX_GRID):
            reduce_kernel[(tiles, min(n - first, MAX_GRID))](
                products, inner, self.gathers, s.label_index, self.state, of_token, s.offsets,
                partial, products.shape[0], s.count, n, first, self.softcap, HAS_CAP=capped,
                ROWS=rows, COLUMNS=blocks.reduce_columns, num_warps=4,
            )  # fmt: skip
        real = [partial.new_empty(shape) for shape in ((n, n), (n,), (n,), (n,))]
        whole = [partial.new_empty(n, dtype=torch.int64) for _ in range(2)]
        samples_kernel[(n,)](
            partial, of_token, s.offsets, s.poison, *real, *whole, s.count, n, ROWS=rows,
            BLOCK=blocks.reduce_columns,
        )  # fmt: skip
        return *real, *whole

    def sketched(self, h: Tensor, sketch: tuple[int, int], tokens: Tensor) -> Tensor:
        """[N, m] float64, sketches of the gradients (m may be 0), after `results`, whose `tokens`
        [N] are those of each sample."""
        s, table, step = self.segments, self.table, self.blocks.buckets
        sketches = self.state.new_empty((s.samples, sketch[0]))
        if table is None:
            return sketches
        of_hidden = width_sketch(h.shape[1], *sketch, torch.float32, h.device)(h)
        parts, how = -(-table.dim // step), {"BLOCK": self.blocks.tokens, "BUCKETS": step}
        sketch_tokens_kernel[(s.count, parts)](
            self.sketches, of_hidden, self.of_token, s.labels, s.owner, s.offsets, table.buckets,
            table.signs, s.count, s.samples, table.dim, **how,
        )  # fmt: skip
        sums = convolved(self.sketches, of_hidden, tokens)
        sketch_samples_kernel[(s.samples, parts)](
            sums, self.of_token, s.offsets, s.poison, sketches, s.count, table.dim, **how
        )
        return sketches
