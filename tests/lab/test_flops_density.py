"""Estimates of operations against PyTorch's counter, density against a literal double loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import tiny_text
import torch
from torch.utils.flop_counter import FlopCounterMode

from oasis.lab.accounts import backward_transfer, forgetting, skew
from oasis.lab.data.encoding import Collator
from oasis.lab.density import FeatureSpace, mean_similarity, median_distance
from oasis.lab.flops import Shape, Way, spent
from oasis.lab.model import attach_lora
from oasis.train.frozen.prefix import freeze_below
from oasis.train.loss import summed_cross_entropy
from oasis.train.reuse import ForwardReuse, columns

ROWS, LENGTH, LABELS = 4, 9, 2
GRAM = Way(frozenset({"gram"}))
VALIDATED = Way(frozenset({"validation", "gram"}), validation=2)
MEANS = Way(frozenset({"features_multi"}))


def lora_model(prefix: bool = False):
    base = tiny_text.model()
    base.set_attn_implementation("eager")  # the counter does not know the fused kernel
    frozen = freeze_below(base, 1, pad_token_id=0) if prefix else None
    return attach_lora(base, rank=2, alpha=None, layers=2, seed=0), frozen


def batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 18, (ROWS, LENGTH), generator=generator)
    labels = torch.full_like(ids, -100)
    labels[:, -LABELS:] = ids[:, -LABELS:]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def test_operations_of_a_training_step_match_the_counter():
    model, _ = lora_model()
    # What enters the lowest block with LoRA gets a gradient, as in all blocks above it.
    lowest = model.get_base_model().model.layers[0]
    lowest.register_forward_hook(lambda *_: _[-1].requires_grad_())
    forward, whole = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.no_grad(), forward:
        summed_cross_entropy(model, batch())
    with whole:
        summed_cross_entropy(model, batch())[0].backward()
    shape = Shape.of(model)
    assert (shape.frozen_blocks, shape.trained_blocks, shape.head) == (1, 2, 18 * 16)
    logits = shape.logits(ROWS * LABELS)
    ahead = shape.frozen_forward(ROWS, LENGTH) + shape.forward(ROWS, LENGTH) + logits
    back = shape.backward(ROWS, LENGTH) + logits
    # Rotary angles are a product too, which the estimate leaves out.
    assert ahead == pytest.approx(forward.get_total_flops(), rel=2e-3)
    assert ahead + back == pytest.approx(whole.get_total_flops(), rel=2e-3)


def test_the_cached_blocks_count_once_per_text():
    model, prefix = lora_model(prefix=True)
    cached, plain = Shape.of(model, prefix), Shape.of(lora_model()[0])
    assert (cached.frozen, cached.trained) == (plain.frozen, plain.trained) and cached.cached
    texts = [(5, 1, b"a"), (7, 1, b"b"), (5, 1, b"a")]
    events = [
        {"type": "selection", "item": [0, 1], "selected": [True, False]},
        {"type": "selection", "item": [2, 1], "selected": [False, False]},
        {"type": "step"},
    ]
    train = cached.forward(1, 5) + cached.backward(1, 5) + 2 * cached.logits(1)
    once = [cached.frozen_forward(1, length) for length in (5, 7)]
    # Scoring meets every text before training does; without scoring only what is trained on runs.
    scored = 2 * (cached.forward(2, 7) + cached.logits(2) + 4 * cached.vocabulary)
    assert spent(events, texts, cached, GRAM) == (scored + sum(once), train)
    assert spent(events, texts, cached, Way()) == (0, train + once[0])
    again = plain.frozen_forward(2, 7) * 2
    features = spent(events, texts, plain, Way(frozenset({"features"})))
    assert features == (2 * plain.forward(2, 7) + again, train + plain.frozen_forward(1, 5))
    # Gradients cost a backward, rows for validation a share of everything.
    more = spent(events, texts, cached, Way(frozenset({"full_grads"})))[0]
    assert more == 2 * (cached.forward(2, 7) + cached.backward(2, 7) + 2 * cached.logits(2)) + sum(
        once
    )
    # The Gram matrix of the last block's: a backward of the head and one of the two blocks.
    block = spent(events, texts, cached, replace(GRAM, layer="last_block"))[0]
    back = cached.backward(2, 7) // 2 + cached.logits(2)
    assert block == 2 * (cached.forward(2, 7) + cached.logits(2) + back) + sum(once)
    validated = spent(events, texts, cached, VALIDATED)[0]
    expected = cached.forward(4, 7) + cached.logits(4) + 16 * cached.vocabulary
    assert validated == 2 * expected + sum(once)
    # Where nothing is cached, the rows for validation run through the frozen blocks too.
    validated = spent(events, texts, plain, VALIDATED)[0]
    assert validated == 2 * (expected + plain.frozen_forward(4, 7))
    # Hidden states of the cached blocks themselves are not in the cache: they run once more.
    means = spent(events, texts, cached, MEANS)[0]
    assert means == 2 * cached.forward(2, 7) + 2 * sum(once)
    assert spent(events, texts, plain, MEANS) == features


def counted(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("reused", [False, True])
def test_a_checkpointed_step_runs_its_blocks_again(reused):
    model = attach_lora(tiny_text.model(), rank=2, alpha=None, layers=None, seed=0)
    model.set_attn_implementation("eager")
    model.gradient_checkpointing_enable()
    model.train()
    rows, shape, reuse = batch(), Shape.of(model), ForwardReuse(model)
    reuse.checked = True  # what the first step alone looks at
    with reuse.keeping() as kept, torch.no_grad():
        model(**rows)
    given = columns(kept, (ROWS, LENGTH)) if reused else {}

    def step():
        with reuse.training({**rows, **given}) as inputs:
            loss, _, _ = summed_cross_entropy(model, inputs)
        loss.backward()

    way = Way(checkpointed=True, reused=reused)
    events = [{"type": "selection", "item": [0] * ROWS, "selected": [True] * ROWS}]
    estimate = spent(events, [(LENGTH, LABELS, b"")], shape, way)[1]
    # Torch's own checkpoint leaves out the last product of a block that it runs again.
    assert estimate == pytest.approx(counted(step), rel=0.002 if reused else 0.08)
    assert estimate >= counted(step) * 0.998
    plain = spent(events, [(LENGTH, LABELS, b"")], shape, Way())[1]
    assert estimate - plain == (0 if reused else shape.forward(ROWS, LENGTH))


def test_what_is_not_scored_or_by_another_model_costs_accordingly():
    shape = Shape.of(lora_model()[0])
    texts = [(5, 1, b"a"), (7, 1, b"b")]
    events = [{"type": "selection", "item": [0, 1], "selected": [False, True], "unscored": [1]}]

    def forward(sizes, rows, length):
        head = sizes.logits(rows) + rows * rows * sizes.vocabulary
        return sizes.frozen_forward(rows, length) + sizes.forward(rows, length) + head

    scored, trained = spent(events, texts, shape, GRAM)
    assert scored == forward(shape, 1, 5)
    assert trained == spent(events, texts, shape, Way())[1]
    del events[0]["unscored"]
    small = replace(shape, frozen_blocks=0, frozen=0)
    beside = spent(events, texts, shape, replace(GRAM, scorer=small))
    assert beside == (forward(small, 2, 7), trained)
    for depth, (below, above) in {1: (1, 0), 2: (1, 1), 3: (1, 2)}.items():
        cut = shape.down_to(depth)
        assert (cut.frozen_blocks, cut.trained_blocks) == (below, above)
        assert cut.trained * 2 == above * shape.trained and cut.head == shape.head
        assert spent(events, texts, shape, replace(GRAM, depth=depth))[0] == forward(cut, 2, 7)


def test_density_is_the_mean_over_all_pairs():
    generator = torch.Generator().manual_seed(1)
    features = torch.nn.functional.normalize(torch.randn(7, 5, generator=generator), dim=1)
    counts = [1, 2, 1, 3, 1, 1, 2]
    multiset = [row for row, count in zip(features, counts, strict=True) for _ in range(count)]
    total = pairs = 0.0
    for i, x in enumerate(multiset):
        for j, y in enumerate(multiset):
            if i != j:
                total += math.exp(-float((x - y).square().sum()) / (2 * 0.6**2))
                pairs += 1
    got = mean_similarity(features, torch.tensor(counts), 0.6)
    assert got == pytest.approx(total / pairs, rel=1e-5)


def test_bandwidth_leaves_equal_texts_out():
    points = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    # Distances 1, 1, 2, 3, 3 and one 0, which is not looked at.
    assert median_distance(points) == pytest.approx(2.0)
    assert median_distance(points[:2]) == 1.0


@pytest.mark.parametrize("prefix", [False, True])
def test_features_are_pooled_hidden_states_without_lora(prefix):
    model, frozen = lora_model(prefix)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    items = [{"input_ids": list(ids), "labels": [-100] * len(ids)}
             for ids in ((3, 4, 5), (6, 7), (8, 9, 3, 4), (3, 4, 5))]  # fmt: skip
    space = FeatureSpace(items, Collator(0), model, frozen)
    plain = tiny_text.model()
    hidden = plain(torch.tensor([[6, 7]]), output_hidden_states=True).hidden_states
    expected = torch.nn.functional.normalize(hidden[1 if prefix else -1][0].mean(dim=0), dim=0)
    torch.testing.assert_close(space[[1]][0], expected.detach(), rtol=1e-4, atol=1e-5)
    assert space.density([0, 3]) == pytest.approx(1.0)
    assert space.density([0, 1]) < 0.999 and space.density([2]) is None
    space.most = 2
    assert 0 < space.density([0, 1, 2, 2]) <= 1


def test_skew_forgetting_and_transfer_by_hand():
    events = [{"task": [0, 0, 1, -1], "selected": [True, False, True, True]},
              {"task": [1, 1, 1, 0], "selected": [False, False, False, True]}]  # fmt: skip
    assert skew(events, 2) == pytest.approx(2 / 3 - 1 / 4)
    events[1]["unscored"] = [0, 1]
    assert skew(events, 2) == pytest.approx(2 / 3 - 1 / 2)
    assert skew([], 2) is None
    matrix = [{"a": 0.8}, {"a": 0.9, "b": 0.5}, {"a": 0.6, "b": 0.7, "c": 0.9}]
    assert forgetting(matrix, ["a", "b", "c"]) == pytest.approx(((0.9 - 0.6) + (0.5 - 0.7)) / 2)
    transfer = backward_transfer(matrix, ["a", "b", "c"])
    assert transfer == pytest.approx(((0.6 - 0.8) + (0.7 - 0.5)) / 2)
    assert forgetting(matrix[:1], ["a"]) is None
