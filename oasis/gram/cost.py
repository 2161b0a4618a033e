"""Which regime of `head_gram` is cheapest: flops and bytes by two measured constants per device.

`python -m bench head_regimes` measures the constants and checks the choice over a grid.
"""

from __future__ import annotations

from math import log2

from oasis.gram.problem import BLOCK_ELEMENTS

SKETCH_SAMPLES = 1024  # "auto" gives an estimate in place of the exact K only from here on
METHODS = ("ghost", "instantiate", "sketch")

# (flops, bytes) per second: matrix products in float32, and the streams between them. CPU: one core
# of a 2.3 GHz Xeon with AVX-512; more cores scale both alike. CUDA: an H100's data sheet, no TF32.
RATES = {"cpu": (110e9, 10e9), "cuda": (50e12, 2.5e12)}


def work(
    method: str, *, tokens: int, width: int, vocabulary: int, samples: int, sketch_dim: int = 4096
) -> tuple[float, float]:
    """(flops, bytes moved between products) of a regime for T tokens, D, V and N in float32."""
    t, d, v, n = (float(max(x, 1)) for x in (tokens, width, vocabulary, samples))
    logits = 2 * t * v * d  # flops of one pass, and its epilogue's traffic:
    epilogue = 4 * 4 * t * v
    if method == "ghost":
        blocks = max(1.0, v * t / BLOCK_ELEMENTS)
        return logits + t * (t + 256) * (v + d), epilogue + 8 * t * t * (blocks + 4)
    if method == "instantiate":  # B is written by one product and read by the next
        return 3 * logits + n * (n + 1) * v * d, 2 * epilogue + 4 * 3 * n * v * d
    chunks = max(1.0, t * sketch_dim / BLOCK_ELEMENTS)
    transforms = 4 * t * sketch_dim * (8 + 2 * log2(sketch_dim))
    return logits + n * n * sketch_dim, 2 * epilogue + transforms + 4 * v * d * chunks


def seconds(method: str, *, device: str = "cpu", **shape: int) -> float:
    """Estimated time of a regime; the shape as for `work`."""
    flops, traffic = work(method, **shape)
    flop_rate, byte_rate = RATES.get(device, RATES["cuda"])
    return flops / flop_rate + traffic / byte_rate


def pick(
    tokens: int, width: int, vocabulary: int, samples: int, sketch_dim: int, device: str
) -> str:
    """The regime that `method="auto"` takes."""
    methods = METHODS if samples >= SKETCH_SAMPLES else METHODS[:2]
    shape = {"tokens": tokens, "width": width, "vocabulary": vocabulary, "samples": samples}
    return min(methods, key=lambda m: seconds(m, **shape, sketch_dim=sketch_dim, device=device))
