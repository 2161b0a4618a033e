"""Which regime of `head_gram` is cheapest: its flops by the type they are done in, its bytes and
launches, over what the device does of each in a second.

`python -m bench head_regimes` measures the CPU's constants and checks the choice over a grid;
`python -m bench head_choices` prints what is picked for GPUs, and the predicted times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

import torch

from oasis.gram import tiles
from oasis.gram.algebra import LOW
from oasis.gram.problem import BLOCK_ELEMENTS, GPU_BLOCK_ELEMENTS
from oasis.gram.rates import CPU, FLOAT8, HALF, TWICE, Entries, Rates, rates_of

SKETCH_SAMPLES = 1024  # "auto" gives an estimate in place of the exact K only from here on
AUTOMATIC = ("ghost", "instantiate", "sketch")
EVERYWHERE = (*AUTOMATIC, "folded")
METHODS = (*EVERYWHERE, "float8")  # this one where the card has it
FEW = 1024  # columns to fold a vocabulary into where nobody reads K: its products then cost little
HOST = torch.device("cpu")

_PLAIN = 30  # reads and writes a logit of the epilogue in plain torch, 20 launches


@dataclass(frozen=True)
class Work:
    """flops by the type they are done in, bytes moved between products, launches; and the seconds
    of the products of E in tiles, which more than flops decide (`oasis.gram.tiles`)."""

    flops: dict[torch.dtype, float]
    traffic: float
    launches: float = 0.0
    tiles: float = 0.0

    def seconds(self, rates: Rates) -> float:
        products = sum(flops / rates.of(dtype) for dtype, flops in self.flops.items())
        between = self.traffic / rates.traffic + self.launches * rates.launch
        return products + self.tiles + between


def work(
    method: str,
    *,
    tokens: int,
    width: int,
    vocabulary: int,
    samples: int,
    sketch_dim: int = 4096,
    dtype: torch.dtype = torch.float32,
    rates: Rates = CPU,
) -> Work:
    """What a regime does for T tokens, D, V and N."""
    gpu = rates.processors > 0
    t, d, v, n = (float(max(x, 1)) for x in (tokens, width, vocabulary, samples))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    size = wide.itemsize
    elements = GPU_BLOCK_ELEMENTS if gpu else BLOCK_ELEMENTS
    half = gpu and dtype in LOW
    own = dtype if half else wide  # of products with h or W; sums are multiplied in `wide`
    logits = 2 * t * v * d  # flops of one pass, and the traffic of its epilogue:
    epilogue = (_PLAIN if gpu else 4) * size * t * v
    if method in ("ghost", "float8"):
        if gpu and dtype != torch.float64:
            entries = HALF if dtype in LOW else TWICE
            return _in_tiles(t, d, v, dtype, FLOAT8 if method == "float8" else entries, rates)
        blocks = max(1.0, v * t / elements)
        traffic = epilogue + 2 * size * t * t * (blocks + 4)
        return Work({wide: logits + t * (t + 256) * (v + d)}, traffic, 40 + 25 * blocks)
    if method == "instantiate":  # B is written by one product and read by the next
        blocks = v / min(v, max(16.0, elements / (n * d)))
        # Deltas are two halves, and the second one's product is added.
        flops = _sums((wide, n * (n + 1) * v * d), (own, (4 if half else 3) * logits))
        traffic = 2 * epilogue + size * (6 if half else 3) * n * v * d
        return Work(flops, traffic, blocks * ((3 if half else 1) * n + 50))
    if method == "folded":  # E is folded where it is made: on a GPU it never reaches memory
        kept = t * (sketch_dim + t)  # the folded E, and E at everybody's label
        traffic = 4 * t * v if gpu and dtype != torch.float64 else epilogue
        launches = max(1.0, v * t / elements) * (2 if gpu else 25)
        flops = _sums((own, logits + t * t * d), (own if half else wide, 2 * t * kept))
        return Work(flops, traffic + size * (2 * kept + 6 * t * t), 60 + launches)
    chunks = max(1.0, t * sketch_dim / elements)
    transforms = size * t * sketch_dim * (8 + 2 * log2(sketch_dim))
    traffic = 2 * epilogue + transforms + size * v * d * chunks
    flops = _sums((wide, n * n * sketch_dim), (own, logits))
    columns = elements / min(t, elements / sketch_dim) if gpu else 1024
    return Work(flops, traffic, chunks * 40 * max(1.0, v / columns))


def _sums(*flops: tuple[torch.dtype, float]) -> dict[torch.dtype, float]:
    total: dict[torch.dtype, float] = {}
    for dtype, count in flops:
        total[dtype] = total.get(dtype, 0.0) + count
    return total


def _in_tiles(
    t: float, d: float, v: float, dtype: torch.dtype, entries: Entries, rates: Rates
) -> Work:
    """Logits by cuBLAS in their own type, E as `entries`, and its products by tiles."""
    columns = min(v, 16384.0, max(2048.0, GPU_BLOCK_ELEMENTS / t))
    blocks = v / columns
    products = blocks * tiles.choose(rates, entries, int(t), int(columns)).seconds
    # Logits are written while they are multiplied, and what tiles read of E is counted with them.
    traffic = (4 + entries.size) * t * v + 20 * t * t
    return Work({dtype: 2 * t * v * d + t * t * d}, traffic, 40 + 3 * blocks, products)


def pick(
    tokens: int,
    width: int,
    vocabulary: int,
    samples: int,
    sketch_dim: int = 4096,
    dtype: torch.dtype = torch.float32,
    device: torch.device = HOST,
    methods: Sequence[str] | None = None,
) -> str:
    """The regime that `method="auto"` takes, or the cheapest of `methods`."""
    if methods is None:
        methods = AUTOMATIC if samples >= SKETCH_SAMPLES else AUTOMATIC[:2]
    rates = rates_of(device)

    def seconds(method: str) -> float:
        return work(
            method,
            tokens=tokens,
            width=width,
            vocabulary=vocabulary,
            samples=samples,
            sketch_dim=sketch_dim,
            dtype=dtype,
            rates=rates,
        ).seconds(rates)

    times = [seconds(method) for method in methods]
    return methods[times.index(min(times))]
