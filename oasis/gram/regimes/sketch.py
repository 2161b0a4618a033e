"""`head_gram` for thousands of candidates: inner products of tensor sketches (method 1.2).

One pass, memory N x m with m = `sketch_dim`; nothing grows as T^2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.gram.algebra import add_lower_products, mirrored
from oasis.gram.problem import Problem
from oasis.gram.results import Results
from oasis.gram.tensor_sketch import VocabularySketch, sample_sketches


def from_sketches(problem: Problem, dim: int, seed: int) -> tuple[Tensor, ...]:
    """The operator's outputs, K from sketches of `dim` numbers."""
    h, samples = problem.hidden, problem.tokens.numel()
    # Those that K is made of, and those that are asked for.
    kinds = [(dim, seed), *([problem.sketch] if problem.sketch[0] else [])]
    kept = [problem.zeros(samples, m) for m, _ in kinds]
    units = torch.ones(samples, dtype=torch.float64, device=h.device)
    metrics = []
    lengths, most = problem.tokens.tolist(), chunk_tokens(problem, dim)
    begin = first_sample = 0
    while first_sample < samples:
        # Whole samples, about as many tokens as a block of logits may hold.
        last_sample, end = first_sample + 1, begin + lengths[first_sample]
        while last_sample < samples and end + lengths[last_sample] - begin <= most:
            end += lengths[last_sample]
            last_sample += 1
        rows, own = slice(begin, end), slice(first_sample, last_sample)
        if begin < end:
            tables = [problem.vocabulary_sketch(*kind) for kind in kinds]
            deltas, r = _sketched_deltas(problem, rows, tables)
            of_tokens = problem.labels[rows], problem.owner[rows] - first_sample, r
            for out, kind, table, delta in zip(kept, kinds, tables, deltas, strict=True):
                hidden = problem.width_sketch(*kind)(h[rows])
                out[own], units[own] = sample_sketches(
                    table, delta, hidden, *of_tokens, problem.tokens[own]
                )
            metrics.append(r.metrics)
        begin, first_sample = end, last_sample
    gram = problem.zeros(samples, samples)
    add_lower_products(gram, kept[0])
    gram = mirrored(gram.double()) * (units * units.unsqueeze(1))
    asked = kept[1].double() * units.unsqueeze(1) if len(kept) > 1 else gram.new_empty((samples, 0))
    return problem.outputs(gram, tuple(torch.cat(m) for m in zip(*metrics, strict=True)), asked)


def chunk_tokens(problem: Problem, dim: int) -> int:
    """Tokens sketched at once: their sketches and a block of logits are both [tokens, m]."""
    return max(64, problem.block_elements // dim)


def _sketched_deltas(
    problem: Problem, rows: slice, tables: list[VocabularySketch]
) -> tuple[list[Tensor], Results]:
    """Sketches [tokens, m] of E in one pass over the vocabulary, and the results."""
    hidden = problem.hidden[rows]
    epilogue = problem.epilogue(rows, gathers=False, sketches=tables)
    for first, logits in problem.blocks(hidden, problem.block_size(hidden.shape[0])):
        epilogue.block(logits, first, None)
    return epilogue.sketched(), problem.results(epilogue.token, rows)
