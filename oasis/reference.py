"""The method, literally: float64, slow, obvious. The yardstick of tests/ and bench/.

Nothing here is imported from the rest of the package, so that an error there cannot hide here.
Every function follows one definition of the method and takes the arguments of its fast
counterpart; where the two could be written alike, this one is written the long way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

IGNORED = -100
ZERO_NORM = 1e-12  # ||S_U||^2 <= ZERO_NORM * (sum_u ||g_u||)^2 counts as zero


# ---- Gram matrices ------------------------------------------------------------------------------


def grad_gram(grads: Tensor | Sequence[Tensor]) -> Tensor:
    """Gram matrix ``K[i, j] = <g_i, g_j>`` of gradients ``[N, ...]``, or one such per parameter."""
    parameters = [grads] if isinstance(grads, Tensor) else list(grads)
    flat = [p.detach().to(torch.float64).reshape(p.shape[0], -1) for p in parameters]
    n = flat[0].shape[0]
    gram = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            gram[i, j] = sum((p[i] * p[j]).sum() for p in flat)
    return gram


@dataclass
class HeadGram:
    """What :func:`head_gram` returns: ``gram [N, N]`` and per-sample metrics ``[N]``."""

    gram: Tensor
    loss: Tensor
    entropy: Tensor
    el2n: Tensor
    correct: Tensor
    tokens: Tensor

    @property
    def perplexity(self) -> Tensor:
        """exp(loss), the perplexity where the reduction is "mean"."""
        return self.loss.exp()


def head_gram(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    reduction: str = "mean",
) -> HeadGram:
    """Gram matrix of the output head's per-sample gradients, each gradient written out (V x D).

    ``delta = p - onehot(y)`` keeps its label entry as minus the sum of the others, never as a
    difference from one, so a confident token loses nothing.
    """
    head = _float64(weight)
    offset = None if bias is None else _float64(bias)
    gradients = torch.zeros(num_samples, *head.shape, dtype=torch.float64)
    loss, entropy, el2n = (torch.zeros(num_samples, dtype=torch.float64) for _ in range(3))
    correct, tokens = (torch.zeros(num_samples, dtype=torch.int64) for _ in range(2))

    for h, y, i in zip(_float64(hidden), labels.tolist(), sample.tolist(), strict=True):
        if y == IGNORED:
            continue
        z, slope = _logits(h, head, offset, softcap, scale)
        others = torch.cat([z[:y], z[y + 1 :]])
        nll = torch.nn.functional.softplus(torch.logsumexp(others, 0) - z[y], threshold=100)
        surprise = nll + (z[y] - z)  # -log p, each against the label's own
        surprise[y] = nll
        p = torch.exp(-surprise)
        delta = p.clone()
        delta[y] = 0.0
        delta[y] = -delta.sum()
        gradients[i] += torch.outer(delta * slope, h)
        loss[i] += nll
        entropy[i] += torch.where(p > 0, p * surprise, 0.0).sum()
        el2n[i] += delta.norm()
        correct[i] += int(z.argmax().item() == y)
        tokens[i] += 1

    if reduction == "mean":
        count = tokens.clamp(min=1).to(torch.float64)
        gradients /= count[:, None, None]
        loss, entropy, el2n = loss / count, entropy / count, el2n / count
    return HeadGram(grad_gram(gradients), loss, entropy, el2n, correct, tokens)


def autograd_head_grads(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    sample: Tensor,
    *,
    num_samples: int,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Per-sample gradients of the head ``[N, V, D]`` by autograd, one backward per sample.

    Shares no formula with :func:`head_gram`; good where no token is confident.
    """
    gradients = torch.zeros(num_samples, *weight.shape, dtype=torch.float64)
    for i in range(num_samples):
        own = (sample == i) & (labels != IGNORED)
        if not own.any():
            continue
        head = _float64(weight).clone().requires_grad_()
        z = _float64(hidden)[own] @ head.T
        z = scale * (z if bias is None else z + _float64(bias))
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        loss = torch.nn.functional.cross_entropy(z, labels[own], reduction=reduction)
        gradients[i] = torch.autograd.grad(loss, head)[0]
    return gradients


def _logits(h, head, offset, softcap, scale):
    """Logits ``[V]`` of one token and their slope: d logit / d (W h)."""
    z = head @ h if offset is None else head @ h + offset
    z = scale * z
    slope = torch.full_like(z, scale)
    if softcap is not None:
        slope = slope / torch.cosh(z / softcap) ** 2
        z = softcap * torch.tanh(z / softcap)
    return z, slope


def _float64(x: Tensor) -> Tensor:
    return x.detach().to(torch.float64)


# ---- SIREN --------------------------------------------------------------------------------------


@dataclass
class SirenResult:
    """``adjusted [N]`` (score when picked; 0 if not valid), ``order`` (the picks), ``method``."""

    adjusted: Tensor
    order: Tensor
    method: str


def siren(
    gram: Tensor, *, method: str = "exact", ridge: float = 0.0, valid: Tensor | None = None
) -> SirenResult:
    """Greedy redundancy adjustment by literal enumeration of every subset of the picked samples.

    ``A_i(H) = I_i - sum_h cos(g_i, g_h) I_h
    + sum_{|U| >= 2} (-1)^|U| cos(g_i, mean_U g) mean_U I``; ``"pairwise"`` stops after the first
    sum, ``"mean_field"`` replaces ||sum_U g||^2 by its mean over the subsets of one size,
    ``"residual"`` is the Schur complement of K, ``"none"`` is I.
    """
    rules = {
        "exact": _exact,
        "mean_field": _mean_field,
        "pairwise": _pairwise,
        "residual": _residual,
        "none": _none,
    }
    if method not in rules:
        raise ValueError(f"method: got {method!r}, expected one of {sorted(rules)}")
    k = gram.detach().to(torch.float64).tolist()
    n = len(k)
    left = [i for i in range(n) if valid is None or bool(valid[i])]
    shift = ridge * sum(k[i][i] for i in left) / max(len(left), 1)
    adjusted = [0.0] * n
    picked: list[int] = []
    while left:
        scores = {i: rules[method](k, i, picked, shift) for i in left}
        best = max(left, key=lambda i: (scores[i], -i))
        adjusted[best] = scores[best]
        picked.append(best)
        left.remove(best)
    return SirenResult(
        torch.tensor(adjusted, dtype=torch.float64), torch.tensor(picked, dtype=torch.int64), method
    )


def _cosine_with_mean(k, i, subset) -> float:
    """cos(g_i, mean of the subset's gradients); 0 where either is the zero vector."""
    square = math.fsum(k[u][v] for u in subset for v in subset)
    bound = math.fsum(math.sqrt(k[u][u]) for u in subset) ** 2
    if k[i][i] <= 0.0 or square <= ZERO_NORM * bound:
        return 0.0
    return math.fsum(k[i][u] for u in subset) / math.sqrt(k[i][i]) / math.sqrt(square)


def _none(k, i, picked, shift) -> float:
    return k[i][i]


def _pairwise(k, i, picked, shift) -> float:
    return math.fsum([k[i][i], *(-_cosine_with_mean(k, i, (h,)) * k[h][h] for h in picked)])


def _exact(k, i, picked, shift) -> float:
    terms = [k[i][i]]
    for size in range(1, len(picked) + 1):
        for subset in combinations(picked, size):
            mean = math.fsum(k[u][u] for u in subset) / size
            terms.append((-1) ** size * _cosine_with_mean(k, i, subset) * mean)
    return math.fsum(terms)


def _mean_field(k, i, picked, shift) -> float:
    """``I_i + sum_u w_u K_iu / ||g_i||``, w_u from the mean ||S_U||^2 over the U of one size."""
    if k[i][i] <= 0.0:
        return 0.0
    terms = [k[i][i]]
    for u in picked:
        others = [v for v in picked if v != u]
        n = len(others)
        mean = math.fsum(k[v][v] for v in others) / n if n else 0.0
        cross = math.fsum(k[u][v] for v in others) / n if n else 0.0
        pairs = math.fsum(k[v][x] for v in others for x in others if x != v)
        weight = -mean_field_sum(
            k[u][u],
            mean,
            k[u][u],
            mean + 2 * cross,
            pairs / (n * (n - 1)) if n > 1 else 0.0,
            n,
            bound=(math.sqrt(k[u][u]), math.fsum(math.sqrt(k[v][v]) for v in others) / (n or 1)),
        )
        terms.append(weight * k[i][u] / math.sqrt(k[i][i]))
    return math.fsum(terms)


def mean_field_sum(score, mean, square, linear, quadratic, n, bound=None, digits=80) -> float:
    """``sum_j (-1)^j C(n, j) (score + j mean) / ((j + 1) sqrt(q(j)))``, term by term.

    ``q(j) = square + linear j + quadratic j (j - 1)``, held to what the mean of squared norms can
    be: never falling (linear >= max(quadratic, 0)) and not negative at n. Terms reach 2^n, so the
    arithmetic carries ``digits`` beyond that. ``bound``: (||g_u||, mean of the others' norms).
    """
    import mpmath

    linear = max(linear, quadratic, 0.0)
    if n > 1:
        quadratic = max(quadratic, -(square / n + linear) / (n - 1))
    own, other = bound or (math.sqrt(square), math.sqrt(mean))
    with mpmath.workdps(digits + int(0.302 * n)):
        a, b, c = mpmath.mpf(square), mpmath.mpf(linear), mpmath.mpf(quadratic)
        total = mpmath.mpf(0)
        for j in range(n + 1):
            q = a + j * b + j * (j - 1) * c
            if q > ZERO_NORM * (own + j * other) ** 2:
                f = (mpmath.mpf(score) + j * mpmath.mpf(mean)) / ((j + 1) * mpmath.sqrt(q))
                total += (-1) ** j * math.comb(n, j) * f
        return float(total)


def _residual(k, i, picked, shift) -> float:
    """``K_ii - k_iH (K_HH + shift I)^-1 k_Hi``, by pseudo-inverse: twins make K_HH singular."""
    if not picked:
        return k[i][i]
    square = torch.tensor([[k[u][v] for v in picked] for u in picked], dtype=torch.float64)
    square += shift * torch.eye(len(picked), dtype=torch.float64)
    row = torch.tensor([k[i][u] for u in picked], dtype=torch.float64)
    inverse = torch.linalg.pinv(square, rtol=ZERO_NORM, hermitian=True)
    return max(k[i][i] - float(row @ inverse @ row), 0.0)


# ---- ORIS ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistics:
    """Running statistics of the stream, as they stood after ``batches`` batches.

    ``mean`` of batch means, ``variance`` of batch means, ``within`` the variance of samples.
    """

    mean: float = 0.0
    variance: float = 0.0
    within: float = 0.0
    batches: int = 0


def relative(
    informativeness: Tensor,
    adjusted: Tensor,
    statistics: Statistics,
    *,
    scale: str = "sample",
    warmup: int = 1,
    valid: Tensor | None = None,
) -> Tensor:
    """``z_i = (A_i - mean) / s`` from the statistics *before* this batch; 0 where not valid.

    ``s`` is sqrt(N v) ("sample"), sqrt(v) ("batch"), v ("raw") or sqrt(within) ("within"). With
    fewer than ``warmup`` batches seen, or where s is 0 (two equal batch means), the batch's own
    mean and population standard deviation. Below 1e-6 |mean| equal scores would be told apart by
    rounding: then s is the root mean square of A - mean, or 1e-6 |mean| where that is smaller too
    ("raw" is no deviation and left alone).
    """
    raw, scores = _float64(informativeness), _float64(adjusted)
    own = torch.ones(len(raw), dtype=torch.bool) if valid is None else valid
    n = int(own.sum())
    z = torch.zeros_like(scores)
    if n == 0:
        return z
    mean = statistics.mean
    s = {
        "sample": math.sqrt(n * statistics.variance),
        "batch": math.sqrt(statistics.variance),
        "raw": statistics.variance,
        "within": math.sqrt(statistics.within),
    }[scale]
    if statistics.batches < max(warmup, 1) or s == 0:
        mean = float(raw[own].mean())
        s = float(((raw[own] - mean) ** 2).mean().sqrt())
    smallest = 1e-6 * abs(mean)
    if scale != "raw" and s < smallest:
        s = max(smallest, float(((scores[own] - mean) ** 2).mean().sqrt()))
    z[own] = (scores[own] - mean) / s if s > 0 else 0.0
    return z


def update(
    informativeness: Tensor,
    statistics: Statistics,
    *,
    beta: float = 0.9,
    valid: Tensor | None = None,
) -> Statistics:
    """The statistics after this batch; beta weighs the newest. The first batch sets the mean."""
    raw = _float64(informativeness)
    own = raw if valid is None else raw[valid]
    if len(own) == 0:
        return statistics
    mean = float(own.mean())
    if statistics.batches == 0:
        return Statistics(mean, 0.0, float(((own - mean) ** 2).mean()), 1)
    around = float(((own - statistics.mean) ** 2).mean())
    return replace(
        statistics,
        mean=beta * mean + (1 - beta) * statistics.mean,
        variance=beta * (mean - statistics.mean) ** 2 + (1 - beta) * statistics.variance,
        within=beta * around + (1 - beta) * statistics.within,
        batches=statistics.batches + 1,
    )


def draw(
    probability: Tensor, relative: Tensor, valid: Tensor, kind: str, seed: int, offset: int
) -> Tensor:
    """Which samples are selected ``[N]`` bool: ``P > r``, r from the Philox stream at ``offset``.

    "bernoulli": one r per position; "shared": one per batch; "systematic": one offset, a sample is
    taken where the cumulated P of the valid samples passes a whole number; "top": as many, those
    with the largest z (ties: lowest index).
    """
    mask = torch.zeros(len(probability), dtype=torch.bool)
    r = uniform(seed, offset, len(probability))
    if kind == "top":
        own = [i for i in range(len(probability)) if valid[i]]
        own.sort(key=lambda i: (-float(relative[i]), i))
        expected = math.fsum(float(p) for p in probability[valid])
        mask[own[: math.floor(float(r[0]) + expected)]] = True
        return mask
    total = float(r[0])
    for i in range(len(probability)):
        if not valid[i]:
            continue
        if kind == "systematic":
            mask[i] = math.floor(total + float(probability[i])) > math.floor(total)
            total += float(probability[i])
        else:
            mask[i] = bool(probability[i] > (r[i] if kind == "bernoulli" else r[0]))
    return mask


def bounds(
    ratio: float, slack: float, selected: int, candidates: int, batches: int
) -> tuple[int, int]:
    """(least, most) samples that may have been selected once ``batches`` batches brought
    ``candidates``: ``selected`` is how many were before the last of them.

    The cap is ratio x candidates, the floor lies `width` below; the past may have crossed either.
    """
    due = ratio * candidates
    most = max(math.floor(due), selected)
    least = math.ceil(due - width(ratio, slack, candidates, batches))
    return min(max(least, selected), most), most


def width(ratio: float, slack: float, candidates: int, batches: int) -> float:
    """Samples between cap and floor: ``slack`` of the budget, at first that of a longer stream
    (90 sqrt(t) of t batches, at most 1,250), and never less than two samples."""
    typical = ratio * max(candidates / batches, 16)
    t = ratio * candidates / typical
    return max(2.0, slack * typical * max(t, min(90 * math.sqrt(t), 1250)))


def settle(
    mask: Tensor,
    relative: Tensor,
    valid: Tensor,
    keep: int,
    kind: str = "bernoulli",
    seed: int = 0,
    offset: int = 0,
    temperature: float = 1.0,
) -> Tensor:
    """``mask`` with ``keep`` samples: drops or adds by the threshold at which each is just drawn.

    sigmoid((z - I) / t) = r at I = z - t logit(r); with a common r that is the order of z.
    """
    at = [float(z) for z in relative]
    if kind == "bernoulli":
        r = [float(x) for x in uniform(seed, offset, len(relative))]
        at = [
            z - temperature * math.log(x / (1 - x)) if x > 0 else math.inf
            for z, x in zip(at, r, strict=True)
        ]
    own = [i for i in range(len(relative)) if valid[i]]
    order = sorted(own, key=lambda i: (-at[i], i))
    drawn = [i for i in order if mask[i]]
    chosen = drawn[:keep]
    chosen += [i for i in order if not mask[i]][: keep - len(chosen)]
    out = torch.zeros_like(mask)
    out[chosen] = True
    return out


def steer(
    threshold: float,
    *,
    ratio: float,
    gain: float,
    slack: float,
    expected: float,
    kept: int,
    count: int,
    selected: int,
    candidates: int,
    batches: int,
) -> float:
    """The next batch's threshold. This batch had ``count`` candidates, its probabilities sum to
    ``expected``, ``kept`` stood; the last three are totals that include it."""
    room = width(ratio, slack, candidates, batches)
    unit = ratio * max(candidates / batches, 16)
    variance = unit * (1 - ratio)  # of a batch's draws
    firm = min(6 * variance / room**2, 0.3)
    slow = gain * unit / room
    left = ratio * candidates - selected
    step = firm * (kept - ratio * count)
    step += slow * (expected - ratio * count)
    step += (firm + slow) ** 2 / 4 * (0.45 * room - left)
    return threshold + step / variance


def threshold(ratio: float, temperature: float = 1.0) -> float:
    """``I_T`` with ``E[sigmoid((Z - I_T) / temperature)] = ratio``, Z standard normal; -inf at
    ratio 1.

    Bisection on a trapezoid sum: the integrand is analytic in the strip \\|Im z\\| < pi x
    temperature, so a step of temperature / 16 already leaves an error below float64's rounding.
    """
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio: got {ratio!r}, expected a number in (0, 1]")
    if ratio == 1.0:
        return -math.inf
    if ratio > 0.5:
        return -threshold(1.0 - ratio, temperature)
    step = min(1.0, temperature) / 16
    last = math.ceil(14 / step)
    nodes = [step * j for j in range(-last, last + 1)]

    def expectation(t: float) -> float:
        return math.fsum(
            step * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            / (1 + math.exp(min((t - z) / temperature, 700.0)))
            for z in nodes
        )  # fmt: skip

    low, high = 0.0, 690.0 * max(1.0, temperature)
    if expectation(low) <= ratio:
        return low
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if expectation(middle) > ratio else (low, middle)


# ---- random numbers -----------------------------------------------------------------------------


def philox(seed: Sequence[int], counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al. 2011): key of 2 and counter of 4 words of 32 bits."""
    k0, k1 = seed
    x0, x1, x2, x3 = counter
    word = 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (b >> 32) ^ x1 ^ k0, b & word, (a >> 32) ^ x3 ^ k1, a & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return x0, x1, x2, x3


def uniform(seed: int, offset: int, n: int) -> Tensor:
    """``n`` uniforms in [0, 1) with 53 bits, one Philox counter each, from ``offset`` on."""
    word = 0xFFFFFFFF
    key = (seed & word, (seed >> 32) & word)
    out = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        at = offset + i
        x0, x1, _, _ = philox(key, (at & word, (at >> 32) & word, 0, 0))
        out[i] = ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53
    return out
