"""What devices do a second, and on GPUs the tiles that the products of E take there.

`python -m bench head_regimes` measures the CPU's constants; those of GPUs are of data sheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from oasis.gram.algebra import LOW


@dataclass(frozen=True)
class Entries:
    """How E, which lies in [0, 1], is kept for tensor cores.

    planes: numbers an entry, whose sum it is. unit: factor that they carry, a power of two.
    products: those of one pair of planes, in products of float16.
    """

    dtype: torch.dtype
    planes: int
    unit: float
    products: float

    @property
    def size(self) -> int:
        """Bytes an entry."""
        return self.planes * self.dtype.itemsize


HALF = Entries(torch.float16, planes=1, unit=1.0, products=1.0)
TWICE = Entries(torch.float16, planes=2, unit=1.0, products=3.0)  # the two low ones' falls away
# The unit lifts what is below float8's 2^-9: 2^-17 of a row's largest entry is kept.
FLOAT8 = Entries(torch.float8_e4m3fn, planes=1, unit=256.0, products=0.5)


@dataclass(frozen=True)
class Tile:
    """Of the symmetric product: one program owns rows x columns numbers, `columns` one or two times
    `rows`, and goes through the vocabulary by `depth`; its warps, and its pipeline's stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# Without spills, which tests/gpu/test_triton_head.py holds. A stage takes (rows + columns) x depth
# numbers of shared memory. An A100 gains nothing by wider tiles: its L2 feeds 128 x 128.
_SMALL = Tile(64, 64, 32, 4, 3)
_SQUARE = Tile(128, 128, 64, 8, 3)
_AMPERE = {HALF: (_SQUARE,), TWICE: (_SQUARE,)}
_HOPPER = {
    HALF: (_SQUARE, Tile(128, 256, 64, 8, 4)),
    TWICE: (_SQUARE, Tile(128, 256, 64, 8, 2)),
    FLOAT8: (Tile(128, 128, 128, 8, 4),),
}
_BLACKWELL = {
    HALF: (_SQUARE, Tile(128, 256, 64, 8, 4)),
    TWICE: (Tile(128, 128, 64, 8, 2),),
    FLOAT8: (Tile(128, 128, 128, 8, 4),),
}
_OTHERS = {HALF: (_SMALL,), TWICE: (_SMALL,), FLOAT8: (Tile(64, 64, 64, 4, 3),)}


@dataclass(frozen=True)
class Rates:
    """What a device does a second.

    half, single, double: flops of products of bfloat16 or float16 summed in float32, of float32
        (no TF32) and of float64. traffic: bytes between products. launch: seconds that one costs.
    l2: bytes that a GPU's second-level cache gives all its `processors` together.
    tiles: those that the product of E chooses from (`oasis.gram.tiles`).
    """

    half: float
    single: float
    double: float
    traffic: float
    launch: float = 0.0
    l2: float = 0.0
    processors: int = 0
    tiles: Mapping[Entries, tuple[Tile, ...]] = field(default_factory=dict, hash=False)

    def of(self, dtype: torch.dtype) -> float:
        if dtype in LOW:
            return self.half
        return self.double if dtype == torch.float64 else self.single


# One core of a 2.3 GHz Xeon with AVX-512, where halves are widened; more cores scale all alike.
CPU = Rates(half=110e9, single=110e9, double=55e9, traffic=10e9)
# By compute capability, as the Triton kernels' blocks: three quarters of the data sheets' figures
# for dense products, unmeasured. A100, H100, B200; the last for every other card.
CUDA = {
    80: Rates(230e12, 15e12, 15e12, 1.5e12, 4e-6, l2=4e12, processors=108, tiles=_AMPERE),
    90: Rates(700e12, 50e12, 50e12, 2.5e12, 4e-6, l2=5.5e12, processors=132, tiles=_HOPPER),
    100: Rates(1700e12, 60e12, 30e12, 6e12, 4e-6, l2=8e12, processors=148, tiles=_BLACKWELL),
}
ANY = Rates(120e12, 40e12, 0.7e12, 0.8e12, 4e-6, l2=2.5e12, processors=80, tiles=_OTHERS)


def rates_of(device: torch.device) -> Rates:
    """What `device` does a second; an H100 for a GPU that is not there."""
    if device.type != "cuda":
        return CPU
    if not torch.cuda.is_available():
        return CUDA[90]
    major, minor = torch.cuda.get_device_capability(device)
    return CUDA.get(10 * major + minor, ANY)
