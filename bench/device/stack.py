"""The forward of the layers below the head, which choosing is put beside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.device.bench import Bench
from bench.device.sizes import LAYERS


class Layer(nn.Module):
    """A decoder layer of the Llama shape, without rotary positions (elementwise, some 1 %)."""

    def __init__(self, width: int, feedforward: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        with torch.device("meta"):
            out = (heads + 2 * groups) * self.size
            self.qkv, self.out = (nn.Linear(width, n, bias=False) for n in (out, width))
            self.up = nn.Linear(width, 2 * feedforward, bias=False)
            self.down = nn.Linear(feedforward, width, bias=False)
            self.before, self.between = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))

    def filled(self, generator: torch.Generator) -> Layer:
        with torch.no_grad():
            for p in self.parameters():
                p.normal_(0, p.shape[-1] ** -0.5, generator=generator)
        return self

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(self.before(x)).view(b, t, -1, self.size).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.groups, self.groups], 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.up(self.between(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def stack(bench: Bench) -> float:
    """Seconds of the forward of LAYERS layers of the 8B shape, from a few timed ones."""
    s = bench.sizes
    layers = [
        Layer(s.width, s.feedforward, s.heads, s.groups)
        .to(torch.bfloat16)
        .to_empty(device=bench.device)
        .filled(bench.generator)
        for _ in range(s.layers)
    ]
    x = bench.randn(s.samples, s.positions, s.width)

    def forward(x=x):
        with torch.no_grad():
            for layer in layers:
                x = layer(x)
        return x

    positions = s.samples * s.positions
    weights = sum(p.numel() for layer in layers for p in layer.parameters())
    flops = 2 * positions * weights + s.layers * 2 * positions * s.positions * s.width
    seconds = bench.measure(
        "forward", f"{s.layers} layers, {s.samples} x {s.positions} positions", forward,
        flops / bench.rate[torch.bfloat16], "bfloat16 flops, causal half of attention",
        note=f"x {LAYERS // s.layers} taken as the 8B stack of {LAYERS}",
    )  # fmt: skip
    return seconds * LAYERS / s.layers
