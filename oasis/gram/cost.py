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

from oasis.gram.algebra import LOW
from oasis.gram.problem import BLOCK_ELEMENTS, GPU_BLOCK_ELEMENTS

SKETCH_SAMPLES = 1024  # "auto" gives an estimate in place of the exact K only from here on
AUTOMATIC = ("ghost", "instantiate", "sketch")
METHODS = (*AUTOMATIC, "folded")
FEW = 1024  # columns to fold a vocabulary into where nobody reads K: its products then cost little
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Rates:
    """What a device does a second.

    half, single, double: flops of products of bfloat16 or float16 summed in float32, of float32
        (no TF32) and of float64. traffic: bytes between products. launch: seconds that one costs.
    """

    half: float
    single: float
    double: float
    traffic: float
    launch: float = 0.0

    def of(self, dtype: torch.dtype) -> float:
        if dtype in LOW:
            return self.half
        return self.double if dtype == torch.float64 else self.single


# One core of a 2.3 GHz Xeon with AVX-512, where halves are widened; more cores scale all alike.
CPU = Rates(half=110e9, single=110e9, double=55e9, traffic=10e9)
# By compute capability, as the Triton kernels' blocks: three quarters of the data sheets' figures
# for dense products, unmeasured. A100, H100, B200; the last for every other card.
CUDA = {
    80: Rates(half=230e12, single=15e12, double=15e12, traffic=1.5e12, launch=4e-6),
    90: Rates(half=700e12, single=50e12, double=50e12, traffic=2.5e12, launch=4e-6),
    100: Rates(half=1700e12, single=60e12, double=30e12, traffic=6e12, launch=4e-6),
}
ANY = Rates(half=120e12, single=40e12, double=0.7e12, traffic=0.8e12, launch=4e-6)

_OURS = 0.45  # share of the rate that L2 leaves to 128 x 128 tiles (bench/NOTES-head-gram-gpu.md)
_PLAIN = 30  # reads and writes a logit of the epilogue in plain torch, 20 launches


@dataclass(frozen=True)
class Work:
    """flops by the type they are done in, bytes moved between products, launches."""

    flops: dict[torch.dtype, float]
    traffic: float
    launches: float = 0.0

    def seconds(self, rates: Rates) -> float:
        products = sum(flops / rates.of(dtype) for dtype, flops in self.flops.items())
        return products + self.traffic / rates.traffic + self.launches * rates.launch


def work(
    method: str,
    *,
    tokens: int,
    width: int,
    vocabulary: int,
    samples: int,
    sketch_dim: int = 4096,
    dtype: torch.dtype = torch.float32,
    gpu: bool = False,
) -> Work:
    """What a regime does for T tokens, D, V and N."""
    t, d, v, n = (float(max(x, 1)) for x in (tokens, width, vocabulary, samples))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    size = wide.itemsize
    elements = GPU_BLOCK_ELEMENTS if gpu else BLOCK_ELEMENTS
    half = gpu and dtype in LOW
    own = dtype if half else wide  # of products with h or W; sums are multiplied in `wide`
    logits = 2 * t * v * d  # flops of one pass, and the traffic of its epilogue:
    epilogue = (_PLAIN if gpu else 4) * size * t * v
    if method == "ghost":
        if gpu and dtype != torch.float64:
            return _ghost_on_tensor_cores(t, d, v, dtype)
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
        traffic = 8 * t * v if gpu and dtype != torch.float64 else epilogue
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


def _ghost_on_tensor_cores(t: float, d: float, v: float, dtype: torch.dtype) -> Work:
    """Logits by cuBLAS in their own type, E in one plane of float16 or two, and their products."""
    low = dtype in LOW
    logits, products = 2 * t * v * d, t * (t + 128) * v / _OURS
    flops = _sums((dtype, logits + t * t * d), (torch.float16, (1 if low else 3) * products))
    blocks = max(1.0, v * t / (32 << 20), v / 16384)
    traffic = (12 if low else 16) * t * v + 4 * t * t * (blocks + 4)
    return Work(flops, traffic, 40 + 3 * blocks)


def rates_of(device: torch.device) -> Rates:
    """What `device` does a second; an H100 for a GPU that is not there."""
    if device.type != "cuda":
        return CPU
    if not torch.cuda.is_available():
        return CUDA[90]
    major, minor = torch.cuda.get_device_capability(device)
    return CUDA.get(10 * major + minor, ANY)


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
    rates, gpu = rates_of(device), device.type == "cuda"

    def seconds(method: str) -> float:
        return work(
            method,
            tokens=tokens,
            width=width,
            vocabulary=vocabulary,
            samples=samples,
            sketch_dim=sketch_dim,
            dtype=dtype,
            gpu=gpu,
        ).seconds(rates)

    times = [seconds(method) for method in methods]
    return methods[times.index(min(times))]
