"""The CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer, called by the operators.

Every result is that of the compiled core, or within rounding of it: the optimiser differs.
"""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from given_gradients import DTYPES, assert_gram, layouts
from oris_steps import oris_options

import oasis
from oasis import _core, operators
from oasis.gram import problem as gram_problem
from oasis.gram.backends import compiled
from oasis.names import DRAWS, RULES, SCALES
from oasis.operators import cpu, memory

from .core import SanitizedCore, build_cpu
from .program import Fault, Program

COMPILED, BEST = (_core.build_info()[key] for key in ("isa_compiled", "isa"))


@pytest.fixture(scope="module", params=COMPILED[: COMPILED.index(BEST) + 1])
def program(request):
    found = Program(build_cpu(), OASIS_ISA=request.param, OMP_NUM_THREADS="3")
    assert found.call("isa", (), (), []) == request.param
    yield found
    found.close()


@pytest.fixture
def sanitized(program, monkeypatch):
    """Switches the operators to the sanitized kernels."""

    def switch():
        core = SanitizedCore(program)
        monkeypatch.setattr(cpu, "_core", core)
        monkeypatch.setattr(memory, "_core", core)
        monkeypatch.setattr(compiled, "_core", core)

    return switch


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gram_of_ragged_shapes(sanitized, dtype, generator):
    sanitized()
    for n, p in ((1, 1), (2, 7), (3, 4099), (16, 136), (17, 2500), (33, 1), (129, 70), (260, 9)):
        grads = torch.randn(n, p, generator=generator).to(dtype)
        assert_gram(oasis.grad_gram(grads), grads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gram_of_every_layout(sanitized, dtype, generator):
    sanitized()
    for view in layouts(generator).values():
        storage = view.new_empty(0).set_(view.untyped_storage()).to(dtype)
        grads = storage.as_strided(view.shape, view.stride(), view.storage_offset())
        assert_gram(oasis.grad_gram(grads), grads)


def test_gram_beyond_float32(sanitized, generator):
    sanitized()
    grads = torch.randn(5, 100, generator=generator) * 1e25
    assert_gram(oasis.grad_gram(grads), grads)


@pytest.mark.parametrize("method", RULES)
def test_siren(sanitized, method, generator):
    floor = torch.tensor(-torch.inf, dtype=torch.float64)
    cases = []
    for n in (*range(1, 18), 30):
        grads = torch.randn(n, 12, generator=generator, dtype=torch.float64)
        grads[n // 2] = grads[0]
        valid = torch.rand(n, generator=generator) < (0.4 if n == 30 else 0.9)
        for scores in (None, torch.rand(n, generator=generator, dtype=torch.float64)):
            cases.append((grads @ grads.T, valid, floor, method, 0.01, scores))
            cases.append((grads @ grads.T, valid, floor + torch.inf, method, 0.01, scores))
        cases[-1] = (*cases[-1][:2], torch.tensor(9.0, dtype=torch.float64), *cases[-1][3:])
    wanted = [operators.siren(*case) for case in cases]
    sanitized()
    for case, (adjusted, order) in zip(cases, wanted, strict=True):
        got = operators.siren(*case)
        assert_relative(got[0], adjusted, 1e-9, floor=float(case[0].max()))
        assert torch.equal(got[1], order)


def test_siren_over_many_subsets(sanitized, generator):
    grads = torch.randn(21, 30, generator=generator, dtype=torch.float64)
    want = oasis.siren(grads @ grads.T, method="exact")
    sanitized()
    got = oasis.siren(grads @ grads.T, method="exact")
    assert_relative(got.adjusted, want.adjusted, 1e-9, floor=float(want.adjusted.abs().max()))
    assert torch.equal(got.order, want.order)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sketches(sanitized, dtype, generator):
    whole = torch.randn(7, 5, 11, 9, generator=generator).to(dtype)
    views = [whole, whole.transpose(0, 2), whole[::3, :, ::2], whole[:1].expand(4, 5, 11, 9)]
    cases = [([view], dim) for view in views for dim in (1, 64, 1000)]
    cases.append(([whole[:, 0, 0], whole[:, 0, 0, 0], whole.flatten(1)[:, ::7]], 33))
    wanted = [operators.grad_sketch(grads, dim, 1) for grads, dim in cases]
    sanitized()
    for (grads, dim), want in zip(cases, wanted, strict=True):
        assert_relative(operators.grad_sketch(grads, dim, 1), want, 1e-12, floor=10.0)


def test_a_selector_that_remembers(sanitized, generator):
    stream = [torch.randn(n, 700, generator=generator) for n in (1, 8, 3, 17, 5, 8)]
    wanted = oasis.Selector(0.5, remember=7)
    masks = [wanted.select(g).mask for g in stream]
    sanitized()
    got = oasis.Selector(0.5, remember=7)
    assert all(torch.equal(got.select(g).mask, m) for g, m in zip(stream, masks, strict=True))
    # The norms that scale it are sums of float32 products, each instruction set with its own order.
    assert_relative(got.memory, wanted.memory, 1e-6, floor=1.0)


def test_no_number_leads_out_of_the_memory(sanitized, generator):
    sanitized()
    numbers = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e300, -1.0, 1e-300, 2.0])
    for selected in (-(2**63), -1, 0, 2, 2**63 - 1):
        counters = torch.full((6,), selected)
        gram, sketch, ring = (
            numbers.double()[torch.randint(len(numbers), shape, generator=generator)]
            for shape in ((5, 5), (5, 9), (4, 9))
        )
        valid = torch.rand(5, generator=generator) < 0.8
        _, scaled = operators.remembered(gram, sketch, valid, ring, counters, 0.1)
        operators.remember_(scaled, valid, counters, ring)


@pytest.mark.parametrize("method", RULES)
def test_no_number_leads_out_of_memory(sanitized, method, generator):
    # Public functions refuse most of these; the operators must survive them.
    sanitized()
    numbers = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e300, -1.0, 1e-300, 2.0])
    state = torch.zeros(4, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    for n in (1, 2, 9, 14):
        for _ in range(8):
            gram, scores, extra = (
                numbers.double()[torch.randint(len(numbers), shape, generator=generator)]
                for shape in ((n, n), (n,), (5,))
            )
            valid = torch.rand(n, generator=generator) < 0.8
            adjusted, order = operators.siren(
                gram, valid, extra[0], method, float(extra[1]), scores
            )
            picks = order[order >= 0].tolist()
            assert len(set(picks)) == len(picks) and valid[order[order >= 0]].all()
            state[0].copy_(extra[:4])
            for draw in DRAWS:
                options = oris_options(draw=draw)
                mask = operators.oris_(scores, adjusted, valid, *state, options)[2]
                assert not (mask & ~valid).any()


@pytest.mark.parametrize("preset", ["paper", "released", "calibrated"])
@pytest.mark.parametrize("draw", DRAWS)
def test_oris(sanitized, preset, draw, generator):
    sizes = (1, 8, 1, 17, 5, 8)
    stream = [torch.randn(n, 9, generator=generator, dtype=torch.float64) for n in sizes]
    settings = [{"preset": preset, "draw": draw, "scale": scale, "seed": 3} for scale in SCALES]
    wanted = [oasis.Selector(0.5, **options) for options in settings]
    masks = [[selector.select(g).mask for g in stream] for selector in wanted]
    sanitized()
    for options, want, mask in zip(settings, wanted, masks, strict=True):
        got = oasis.Selector(0.5, **options)
        assert all(torch.equal(got.select(g).mask, m) for g, m in zip(stream, mask, strict=True))
        assert_relative(got.statistics, want.statistics, 1e-9, floor=1e-6)


def head_problems(generator):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for tokens, masked in ((1, 0.0), (3, 0.5), (37, 0.2)):
            weight = torch.randn(501, 6, generator=generator) * 3
            labels = torch.randint(501, (tokens,), generator=generator)
            labels[torch.rand(tokens, generator=generator) < masked] = -100
            yield {
                "hidden": (torch.randn(tokens, 6, generator=generator) * 4).to(dtype),
                "weight": weight.to(dtype),
                "labels": labels,
                "sample": torch.randint(4, (tokens,), generator=generator),
                "num_samples": 4,
                "bias": torch.randn(501, generator=generator).to(dtype) if masked else None,
                "softcap": 20.0 if tokens == 37 else None,
                "scale": 1.5 if masked else 1.0,
            }


def whole_and_parts(arguments):
    """head_gram by every method, and merged from two parts of the vocabulary."""
    for method in ("ghost", "instantiate", "sketch"):
        yield oasis.head_gram(**arguments, method=method, sketch_dim=64)
    parts = []
    for ends in ((0, 130), (130, 501)):
        rows = {k: arguments[k] for k in ("weight", "bias") if arguments[k] is not None}
        own = arguments | {k: v[slice(*ends)] for k, v in rows.items()}
        parts.append(oasis.head_gram(**own, vocab_range=ends))
    yield oasis.merge(parts)


def test_head_gram(sanitized, monkeypatch, generator):
    monkeypatch.setattr(gram_problem, "BLOCK_ELEMENTS", 1 << 10)  # several blocks
    problems = list(head_problems(generator))
    wanted = [list(whole_and_parts(problem)) for problem in problems]
    sanitized()
    for problem, want in zip(problems, wanted, strict=True):
        for g, w in zip(whole_and_parts(problem), want, strict=True):
            assert cosine_scaled(g.gram - w.gram, w.gram).max() < 1e-5
            for name in ("loss", "entropy", "el2n"):
                assert_relative(getattr(g, name), getattr(w, name), 1e-5, floor=1e-3)
            assert torch.equal(g.correct, w.correct)


@pytest.mark.parametrize("call", ["gram", "wide gram", *RULES])
def test_lack_of_memory_is_an_error_and_leaks_nothing(sanitized, program, call, generator):
    sanitized()
    grads = torch.randn(12, 9000, generator=generator) * (1e25 if call == "wide gram" else 1)

    def compute():
        return oasis.siren(gram, method=call) if call in RULES else oasis.grad_gram(grads)

    gram = oasis.grad_gram(grads)
    failed = 0
    while True:
        program.call("fail", (failed,), (), [])
        try:
            compute()
            break
        except MemoryError:
            failed += 1
    program.call("fail", (-1,), (), [])
    assert failed >= (1 if call in ("pairwise", "none") else 2), "no allocation failed"
    compute()


def test_the_net_holds(program, generator):
    buffer = torch.zeros(4, dtype=torch.float64)
    assert program.call("fault", (0, 3), (), [buffer]) == "ok" and buffer[3] == 1
    for integers, words in (((0, 4), "heap-buffer-overflow"), ((1, 64), "shift exponent")):
        with pytest.raises(Fault, match=words):
            program.call("fault", integers, (), [buffer])
    # A gradient that is one number shorter than its shape says.
    short, out = torch.zeros(3 * 50 - 1), torch.zeros(9, dtype=torch.float64)
    with pytest.raises(Fault, match="heap-buffer-overflow"):
        program.call("gram:float32", (0, 3, 50, 50, 1), (), [short, out])
