"""A seeded tensor sketch of every sample's gradient (method 1.2).

A count sketch of delta_t (over the vocabulary) and one of h_t, both into m buckets, convolve to a
count sketch of delta_t h_t^T (Pham and Pagh 2013); sums over tokens are sketches of g_i, and their
inner products estimate K without bias: E = K_ij, with a standard deviation of at most
sqrt(11 / m) sqrt(K_ii K_jj) over seeds, about sqrt(2 / m) in practice. The tables depend on the
seed and m alone, and those of a longer vocabulary begin as those of a shorter one: sketches of
different calls, and of parts of a vocabulary, belong together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from oasis.gram.algebra import segment_sum
from oasis.gram.results import Results, unit_coefficients

_CHUNK = 4096  # random numbers drawn at once


def _draw(seed: int, high: int, length: int) -> Tensor:
    """The first `length` of an endless sequence of integers in [0, high)."""
    generator = torch.Generator().manual_seed(seed)
    chunks = range(-(-length // _CHUNK))
    return torch.cat([torch.randint(high, (_CHUNK,), generator=generator) for _ in chunks])[:length]


def _seeds(seed: int) -> list[int]:
    """Seeds of the vocabulary's shifts and signs and of the width's buckets and signs."""
    generator = torch.Generator().manual_seed(seed)
    return [int(x) for x in torch.randint(1 << 62, (4,), generator=generator)]


class WidthSketch:
    """A random bucket and sign for every coordinate of h."""

    def __init__(self, width: int, dim: int, seed: int, dtype: torch.dtype, device: torch.device):
        _, _, of_buckets, of_signs = _seeds(seed)
        bucket = _draw(of_buckets, dim, width)
        self.order = torch.argsort(bucket, stable=True).to(device)
        self.lengths = torch.bincount(bucket, minlength=dim).to(device)
        self.signs = (_draw(of_signs, 2, width) * 2 - 1).to(device, dtype)

    def __call__(self, values: Tensor) -> Tensor:
        """[R, m] of values [R, D]."""
        return segment_sum((values * self.signs).T[self.order], self.lengths).T.contiguous()


@dataclass(frozen=True)
class VocabularySketch:
    """Buckets and signs for the vocabulary: runs of m positions, each run rotated at random.

    Two positions share a bucket with probability 1/m or never, and signs are independent. Beside
    the other factor's random buckets that gives the variance of a random hash or less; and a run
    is added as two slices.

    Attributes:
        dim: m.
        shifts: rotation of each run.
        buckets: [V] int32; signs: [V], of the type of the sums.
        start: position in the vocabulary that the caller counts from.
    """

    dim: int
    shifts: tuple[int, ...]
    buckets: Tensor
    signs: Tensor
    start: int = 0

    @classmethod
    def of(
        cls, length: int, dim: int, seed: int, dtype: torch.dtype, device: torch.device
    ) -> VocabularySketch:
        of_shifts, of_signs, _, _ = _seeds(seed)
        position = torch.arange(length)
        shifts = _draw(of_shifts, dim, -(-length // dim))
        buckets = (position + shifts[position // dim]) % dim
        signs = _draw(of_signs, 2, length) * 2 - 1
        tables = buckets.to(device, torch.int32), signs.to(device, dtype)
        return cls(dim, tuple(shifts.tolist()), *tables)

    def without(self, positions: Tensor) -> VocabularySketch:
        """The same tables, to which these positions (from `start`; negative: none) add nothing."""
        length = self.signs.numel()
        at = torch.where(positions < 0, length, positions + self.start)
        signs = torch.cat([self.signs, self.signs.new_zeros(1)]).index_fill(0, at, 0.0)
        return replace(self, signs=signs[:length])

    def add(self, out: Tensor, values: Tensor, first: int) -> None:
        """out [R, m] += the sketch of values [R, C], which stand at `first`, ..."""
        first += self.start
        at = 0
        while at < values.shape[1]:
            run, inside = divmod(first + at, self.dim)
            bucket = (inside + self.shifts[run]) % self.dim
            # To the end of the run, of the buckets or of the values.
            length = min(self.dim - inside, self.dim - bucket, values.shape[1] - at)
            signs = self.signs[first + at : first + at + length]
            out[:, bucket : bucket + length].addcmul_(values[:, at : at + length], signs)
            at += length


@lru_cache(maxsize=16)
def width_sketch(
    width: int, dim: int, seed: int, dtype: torch.dtype, device: torch.device
) -> WidthSketch:
    """The tables of h, kept for the next call."""
    return WidthSketch(width, dim, seed, dtype, device)


@lru_cache(maxsize=16)
def vocabulary_sketch(
    length: int, dim: int, seed: int, dtype: torch.dtype, device: torch.device
) -> VocabularySketch:
    """The tables of the first `length` positions of the vocabulary, kept for the next call."""
    return VocabularySketch.of(length, dim, seed, dtype, device)


def sample_sketches(
    vocabulary: VocabularySketch,
    deltas: Tensor,
    hidden: Tensor,
    labels: Tensor,
    owner: Tensor,
    r: Results,
    tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sketches [N, m] of the gradients, each over its sample's unit [N] (float64).

    Args:
        vocabulary: the tables that `deltas` were made with.
        deltas: [T, m], sketches of E, which is relative to its largest entry.
        hidden: [T, m], sketches of h.
        labels, owner: [T] int64; samples are counted from 0.
        r: results of these tokens: delta_t = coefficient (entry_share E_t - label_share e_{y_t}).
        tokens: [N] int64, how many each sample has, side by side.
    """
    coefficient, unit = unit_coefficients(r.coefficient, owner, tokens.numel())
    deltas = deltas * r.entry_share.to(deltas.dtype).unsqueeze(1)
    at = torch.arange(labels.numel(), device=labels.device), vocabulary.buckets[labels].long()
    deltas[at] -= r.label_share.to(deltas.dtype) * vocabulary.signs[labels]
    hidden = hidden * coefficient.to(hidden.dtype).unsqueeze(1)
    return convolved(deltas, hidden, tokens), unit


def convolved(deltas: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
    """[N, m] sums over the `tokens` [N] of each sample, side by side, of the circular convolutions
    of deltas and hidden [T, m]."""
    spectrum = torch.fft.rfft(deltas) * torch.fft.rfft(hidden)
    # Complex numbers as pairs: what sums over segments takes.
    total = segment_sum(torch.view_as_real(spectrum).flatten(1), tokens)
    total = torch.view_as_complex(total.view(tokens.numel(), -1, 2))
    sums: Tensor = torch.fft.irfft(total, n=deltas.shape[1])
    return sums
