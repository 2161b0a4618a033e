"""Counting answers, and nothing else."""

import pytest
import torch

from oasis import policies
from oasis.policies import Signals
from oasis.train.batch.subbatch import answers


def batch(*answer, tokens=None):
    tokens = torch.ones(len(answer), dtype=torch.int64) if tokens is None else tokens
    return Signals(len(answer), tokens=tokens, answer=torch.tensor(answer))


def test_the_answer_trained_on_least_comes_first():
    policy = policies.create("balanced", 0.5)
    # By hand, half of each batch.
    assert policy.observe(batch(7, 7)).mask.sum() == 1
    assert policy.observe(batch(7, 9)).mask.tolist() == [False, True]
    assert policy.observe(batch(9, 3)).mask.tolist() == [False, True]
    # One of each so far, so one of each again; then two of 7 and 9, one of 3.
    mask = policy.observe(batch(7, 7, 9, 9)).mask
    assert mask[:2].sum() == mask[2:].sum() == 1
    assert policy.observe(batch(7, 3)).mask.tolist() == [False, True]


def test_what_has_no_label_is_not_counted():
    policy = policies.create("balanced", 1.0)
    mask = policy.observe(batch(1, 2, tokens=torch.tensor([0, 3]))).mask
    assert mask.tolist() == [False, True] and dict(policy.counts.of) == {2: 1}


def test_ties_are_random():
    taken = torch.zeros(4)
    for seed in range(400):
        taken += policies.create("balanced", 0.25, seed).observe(batch(5, 5, 5, 5)).mask
    assert taken.sum() == 400 and taken.min() > 60  # 100 expected, standard deviation 8.7


def test_answers_must_be_known():
    with pytest.raises(ValueError, match=r"signals.answer: got None, the policy 'balanced' needs"):
        policies.create("balanced").observe(Signals(4))


def test_an_answer_is_known_by_its_label_tokens():
    rows = torch.tensor(
        [
            [-100, -100, 11, 12, -100],
            [-100, 11, 12, -100, -100],  # the same, elsewhere
            [-100, -100, 12, 11, -100],  # another order
            [-100, -100, 11, -100, -100],  # its beginning
            [-100, -100, 11, 12, 0],  # longer by the token 0
            [-100, -100, -100, -100, -100],
            [40, -100, -100, 11, 12],  # the first column is predicted by nothing
        ]
    )
    found = answers(rows).tolist()
    assert found[0] == found[1] == found[6]
    assert len(set(found)) == 5 and found[5] == 0


def test_long_answers_do_not_meet_by_chance():
    rows = torch.randint(0, 50_000, (2000, 64), generator=torch.Generator().manual_seed(0))
    assert len(set(answers(rows).tolist())) == 2000
