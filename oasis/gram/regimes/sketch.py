"""`head_gram` for thousands of candidates: a seeded tensor sketch of every gradient (method 1.2).

A count sketch of delta_t (over the vocabulary) and one of h_t, both into m = `sketch_dim` buckets,
convolve to a count sketch of delta_t h_t^T (Pham and Pagh 2013); sums over tokens are sketches of
g_i, and their inner products estimate K without bias: E = K_ij, with a standard deviation of at
most sqrt(11 / m) sqrt(K_ii K_jj) over seeds, about sqrt(2 / m) in practice. One pass, memory
N x m; nothing grows as T^2. Convolutions stay in the frequency domain (Parseval).
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.gram.algebra import add_lower_products, mirrored, segment_sum
from oasis.gram.problem import BLOCK_ELEMENTS, Problem, Results, unit_tilts


def _signs(length: int, generator: torch.Generator, like: Tensor) -> Tensor:
    return (torch.randint(2, (length,), generator=generator) * 2 - 1).to(like)


class WidthSketch:
    """A random bucket and sign for every coordinate of h."""

    def __init__(self, width: int, dim: int, generator: torch.Generator, like: Tensor):
        bucket = torch.randint(dim, (width,), generator=generator)
        self.order = torch.argsort(bucket, stable=True).to(like.device)
        self.lengths = torch.bincount(bucket, minlength=dim).to(like.device)
        self.signs = _signs(width, generator, like)

    def __call__(self, values: Tensor) -> Tensor:
        """[R, m] of values [R, D]."""
        return segment_sum((values * self.signs).T[self.order], self.lengths).T


class VocabularySketch:
    """Buckets and signs for the vocabulary: runs of m positions, each run rotated at random.

    Two positions share a bucket with probability 1/m or never, and signs are independent. Beside
    the other factor's random buckets that gives the variance of a random hash or less; and a run
    is added as two slices.
    """

    def __init__(self, length: int, dim: int, generator: torch.Generator, like: Tensor):
        self.dim = dim
        runs = -(-length // dim)
        self.shifts = torch.randint(dim, (runs,), generator=generator).tolist()
        self.signs = _signs(length, generator, like)

    def add(self, out: Tensor, values: Tensor, first: int) -> None:
        """out [R, m] += the sketch of values [R, C], which stand at `first`, ...; overwritten."""
        values *= self.signs[first : first + values.shape[1]]
        at = 0
        while at < values.shape[1]:
            run, inside = divmod(first + at, self.dim)
            bucket = (inside + self.shifts[run]) % self.dim
            # To the end of the run, of the buckets or of the values.
            length = min(self.dim - inside, self.dim - bucket, values.shape[1] - at)
            out[:, bucket : bucket + length] += values[:, at : at + length]
            at += length

    def bucket(self, position: Tensor) -> Tensor:
        shifts = torch.tensor(self.shifts, device=position.device)
        run = torch.div(position, self.dim, rounding_mode="floor")
        return (position - run * self.dim + shifts[run]) % self.dim


def sketch(problem: Problem, dim: int, seed: int) -> tuple[Tensor, ...]:
    h, samples = problem.hidden, problem.tokens.numel()
    vocabulary, width = problem.weight.shape
    generator = torch.Generator().manual_seed(seed)
    of_delta = VocabularySketch(vocabulary, dim, generator, h)
    of_hidden = WidthSketch(width, dim, generator, h)
    # Parseval for real sequences: every frequency counts twice but the first (and a middle one).
    weights = h.new_full((dim // 2 + 1,), 2.0 / dim)
    weights[0] = 1.0 / dim
    if dim % 2 == 0:
        weights[-1] = 1.0 / dim

    sketches = h.new_zeros((samples, 2 * (dim // 2 + 1)))
    scale = torch.ones(samples, dtype=torch.float64, device=h.device)
    metrics = []
    lengths = problem.tokens.tolist()
    begin = first_sample = 0
    while first_sample < samples:
        # Whole samples, about as many tokens as a block of logits may hold.
        last_sample, end = first_sample + 1, begin + lengths[first_sample]
        while last_sample < samples and end + lengths[last_sample] - begin <= chunk_tokens(dim):
            end += lengths[last_sample]
            last_sample += 1
        rows, own = slice(begin, end), slice(first_sample, last_sample)
        if begin < end:
            delta, r = _sketched_deltas(problem, rows, of_delta, dim)
            owner = problem.owner[rows] - first_sample
            tilt, scale[own] = unit_tilts(r.tilt, owner, last_sample - first_sample)
            hidden = of_hidden(h[rows] * tilt.to(h.dtype).unsqueeze(1))
            spectrum = torch.fft.rfft(delta) * torch.fft.rfft(hidden) * weights.sqrt()
            flat = torch.view_as_real(spectrum).flatten(1)
            sketches[own] = segment_sum(flat, problem.tokens[own])
            metrics.append(r.metrics)
        begin, first_sample = end, last_sample
    gram = h.new_zeros((samples, samples))
    add_lower_products(gram, sketches)
    gram = mirrored(gram.double()) * (scale * scale.unsqueeze(1))
    return problem.outputs(gram, tuple(torch.cat(m) for m in zip(*metrics, strict=True)))


def chunk_tokens(dim: int) -> int:
    """Tokens sketched at once: their sketches and a block of logits are both [tokens, m]."""
    return max(64, BLOCK_ELEMENTS // dim)


def _sketched_deltas(
    problem: Problem, rows: slice, of_delta: VocabularySketch, dim: int
) -> tuple[Tensor, Results]:
    """Sketches of E - pull e_y [tokens, m] in one pass over the vocabulary, and the results."""
    hidden = problem.hidden[rows]
    out = hidden.new_zeros((dim, hidden.shape[0])).T  # as the blocks of logits lie
    epilogue = problem.epilogue(rows, gathers=False)
    ridge = epilogue.token["ridge"].clone()
    for first, logits in problem.blocks(hidden, problem.block_size(hidden.shape[0])):
        epilogue.block(logits, first, None)
        now = epilogue.token["ridge"]
        if first and not torch.equal(now, ridge):
            factor = torch.where(now == ridge, 1.0, (ridge - now).exp())
            out *= factor.to(out.dtype).unsqueeze(1)
        ridge.copy_(now)
        of_delta.add(out, logits, first)
    r = problem.results(epilogue.token, rows)
    labels = problem.labels[rows]
    out *= r.lift.to(out.dtype).unsqueeze(1)
    pull = r.pull.to(out.dtype) * of_delta.signs[labels]
    out[torch.arange(len(labels), device=out.device), of_delta.bucket(labels)] -= pull
    return out.contiguous(), r
