"""What is measured: of a GPU, or of the dry run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes on a GPU; the head and its stack are those of an 8B model."""

    copy: int = 1 << 30  # bytes
    square: int = 8192  # of the bfloat16 product; half of it in float64
    samples: int = 16
    columns: int = 64_000_000
    exact: tuple[int, ...] = (16, 20, 24)
    residual: tuple[int, ...] = (64, 256)
    tokens: tuple[int, ...] = (1600, 3200)
    width: int = 4096
    vocabularies: tuple[int, ...] = (128256, 151936)
    feedforward: int = 14336
    heads: int = 32
    groups: int = 8
    positions: int = 512  # per sample, in the forward of the stack
    layers: int = 2  # timed; extrapolated to LAYERS
    steps: int = 60  # of each training
    student: tuple[int, int, int, int] = (2048, 16, 32, 32000)  # width, layers, heads, vocabulary


LAYERS = 32  # of the 8B stack
DRY = Sizes(
    copy=1 << 20, square=64, columns=4000, exact=(4, 6), residual=(8,), tokens=(32, 64), width=32,
    vocabularies=(96, 112), feedforward=64, heads=4, groups=2, positions=8, steps=2,
    student=(32, 2, 4, 96),
)  # fmt: skip
