"""Mean-field SIREN: its sum against 80 digits, the rule against exact, near-duplicates, time.

Floor at N = 256: N^2 / 2 sums of 64 to 500 nodes, each two square roots and two divisions; about
100 cycles per 8 nodes with AVX-512 is 10 ms at 64 nodes.
"""

from __future__ import annotations

import time
from math import comb

import mpmath
import torch

from bench.timing import show, table
from oasis import _core, reference, siren

SIZES = (1, 2, 4, 8, 12, 13, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SHAPES = {  # (square, linear, quadratic) of q for n
    "orthogonal": lambda n: (1.0, 1.0, 0.0),
    "cosine 0.5": lambda n: (1.0, 2.0, 0.5),
    "cosine 0.99": lambda n: (1.0, 2.98, 0.99),
    "complex roots": lambda n: (1.0, 1.0, 0.5),
    "roots +-10i": lambda n: (100.0, 1.0, 1.0),
    "small own norm": lambda n: (1e-4, 1.0, 0.3),
    "sum nearly zero": lambda n: (1.0, 1.0, -0.99 * (1 + n) / max(n * (n - 1), 1)),
}


def errors() -> None:
    """|sum - 80 digits| over the largest |f(j)|."""
    rows = []
    for name, shape in SHAPES.items():
        row = []
        for n in SIZES:
            a, b, c = shape(n)
            arguments = a, 1.0, a, b, c, n
            b, c = max(b, c, 0.0), c if n < 2 else max(c, -(a / n + max(b, c, 0.0)) / (n - 1))
            terms = [(a + j) / ((j + 1) * (a + j * (b + (j - 1) * c)) ** 0.5) for j in range(n + 1)]
            error = _core.mean_field_sum(*arguments) - reference.mean_field_sum(*arguments)
            row.append(f"{abs(error) / max(terms):.0e}")
        rows.append([name, *row])
    table("Error of the alternating sum over max |f(j)|, by n", ["q", *map(str, SIZES)], rows)


def grams(n: int, g: torch.Generator) -> dict[str, torch.Tensor]:
    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    kinds = {"random, P = 4 N": draw(n, 4 * n), "rank N / 2": draw(n, n // 2)}
    kinds["rank 8, positive"] = draw(n, 8).abs()
    for cosine in (0.3, 0.5, 0.9, 0.99):
        centres = draw(4, 256)[torch.arange(n) % 4]
        kinds[f"4 clusters, cosine {cosine}"] = cosine**0.5 * centres + (1 - cosine) ** 0.5 * draw(
            n, 256
        )
    side = torch.where(torch.arange(n) % 6 == 0, 1.0, -1.0).double().unsqueeze(1)
    kinds["two opposed classes, cosine 0.6"] = 0.6**0.5 * side * draw(256) + 0.4**0.5 * draw(n, 256)
    return {name: x @ x.T for name, x in kinds.items()}


def ranks(x: torch.Tensor) -> torch.Tensor:
    return x.argsort().argsort().double()


def against_exact(n: int, seeds: int = 10) -> None:
    sums: dict[str, list] = {}
    for seed in range(seeds):
        for name, gram in grams(n, torch.Generator().manual_seed(seed)).items():
            exact, ours = (siren(gram, method=m) for m in ("exact", "mean_field"))
            score = gram.diagonal().mean()
            error = (ours.adjusted - exact.adjusted).abs() / score
            pair = torch.stack([ranks(ours.adjusted), ranks(exact.adjusted)])
            change = (exact.adjusted - gram.diagonal()).abs().median() / score
            low = [float(r.adjusted.min() / score) for r in (exact, ours)]
            high = [float((r.adjusted - gram.diagonal()).max() / score) for r in (exact, ours)]
            values = [float(error.median()), float(error.max()), float(torch.corrcoef(pair)[0, 1])]
            sums.setdefault(name, []).append([*values, float(change), *low, *high])
    rows = []
    for name, values in sums.items():
        v = torch.tensor(values)
        worst = [*v[:, 4:6].amin(0).tolist(), *v[:, 6:8].amax(0).tolist()]
        middle = v[:, :4].median(0).values.tolist()
        rows.append([name, *(f"{x:.3f}" for x in (*middle, *worst))])
    header = ["Gram", "median error", "largest error", "rank correlation", "median |A - I|, exact",
              "min A, exact", "min A", "max A - I, exact", "max A - I"]  # fmt: skip
    table(f"Against exact, N = {n}, in units of mean I ({seeds} seeds)", header, rows)


def exact_of_clusters(counts: list[int], cosine: float) -> list[float]:
    """A_i(H) for a new sample of each cluster of unit gradients with this cosine inside and none
    between, `counts` of each in H: the subsets counted by how many they take of each cluster."""
    with mpmath.workdps(60):
        rho, total = mpmath.mpf(cosine), [mpmath.mpf(0)] * len(counts)
        sizes = [range(c + 1) for c in counts]
        for take in torch.cartesian_prod(*(torch.tensor(list(s)) for s in sizes)).tolist():
            k = sum(take)
            if k == 0:
                continue
            ways = 1
            for c, t in zip(counts, take, strict=True):
                ways *= comb(c, t)
            norm = mpmath.sqrt(k + rho * sum(t * (t - 1) for t in take))
            for c, t in enumerate(take):
                total[c] += (-1) ** k * ways * rho * t / norm
        return [float(1 + t) for t in total]


def near_duplicates() -> None:
    """4 clusters of 16 at N = 64: mean field on the way against exact, for the same H."""
    for cosine in (0.9, 0.99, 1.0):
        owner = torch.arange(64) % 4
        gram = torch.where(owner.unsqueeze(1) == owner, cosine, 0.0).double()
        gram.fill_diagonal_(1.0)
        got = siren(gram, method="mean_field")
        residual = siren(gram, method="residual").adjusted.sort().values
        rows = []
        for m in (1, 2, 4, 6, 8, 12, 16, 24, 32, 40):
            head = got.order[:m]
            counts = torch.bincount(owner[head], minlength=4).tolist()
            nextup = int(got.order[m])
            truth = exact_of_clusters(counts, cosine)
            ours = float(got.adjusted[nextup])
            rows.append([m, counts, f"{ours:.4f}", f"{truth[int(owner[nextup])]:.4f}"])
        low, high = float(got.adjusted.min()), float(got.adjusted.max())
        table(f"4 clusters of 16, cosine {cosine}: A of the next pick (I = 1)",
              ["picked", "of each cluster", "mean field", "exact"], rows)  # fmt: skip
        middle = float(got.adjusted.median())
        print(f"\nall 64: A from {low:.3f} to {high:.3f}, median {middle:.3f}; "
              f"residual: median {float(residual[32]):.3f}")  # fmt: skip


def seconds() -> None:
    rows = []
    for n in (32, 64, 128, 256, 512):
        row = []
        for shared in (0.0, 0.5):  # real roots of q; complex ones for half the samples
            x = torch.randn(n, 512, dtype=torch.float64) + shared * torch.randn(512).double()
            gram, best = x @ x.T, float("inf")
            for _ in range(5):
                start = time.process_time()
                siren(gram, method="mean_field")
                best = min(best, time.process_time() - start)
            row.append(show(best))
        rows.append([n, *row])
    table("Time of the call, one thread", ["N", "random", "random + a shared part"], rows)


def run() -> None:
    torch.manual_seed(0)
    errors()
    for n in (12, 16, 20):
        against_exact(n, 10 if n < 20 else 4)
    near_duplicates()
    seconds()
