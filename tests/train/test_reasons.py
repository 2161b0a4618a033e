"""Why a candidate was left out, by hand."""

import torch

from oasis import Selection
from oasis.policies import Signals
from oasis.train.events import selection_event
from oasis.train.reasons import redundant


def observed(mask, score, adjusted, gram, skipped=()):
    """A selection of a policy that scores, and its signals."""
    n = len(mask)
    values = [
        None if v is None else torch.tensor(v, dtype=torch.float64) for v in (score, adjusted)
    ]
    selection = Selection(
        mask=torch.tensor(mask),
        informativeness=values[0],
        adjusted=values[1],
        relative=None,
        probability=None,
        picks=None,
        threshold=None,
        siren="residual",
        backend="by hand",
        skipped=torch.tensor([row in skipped for row in range(n)]),
    )
    gram = None if gram is None else torch.tensor(gram, dtype=torch.float64)
    return selection, Signals(n, tokens=torch.ones(n, dtype=torch.int64), gram=gram)


# Row 0 is picked; row 1 is half a copy of it, row 2 has little to say, row 3 is not finite.
MASK = [True, False, False, False]
SCORE, ADJUSTED = [4.0, 9.0, 1.0, 9.0], [4.0, 2.25, 0.5, 0.0]
GRAM = [[4.0, -4.8, 0.0, 0], [-4.8, 9.0, 0.0, 0], [0.0, 0.0, 1.0, 0], [0, 0, 0, 9.0]]


def test_what_would_have_been_picked_is_redundant_with_the_pick_most_like_it():
    none, twin, low, skipped = redundant(*observed(MASK, SCORE, ADJUSTED, GRAM, skipped=(3,)))
    assert none is None and low is None and skipped is None
    assert twin.pick == 0 and twin.shared == 0.75
    assert abs(twin.cosine - -4.8 / 6) < 1e-12


def test_nothing_is_redundant_where_nothing_was_picked_or_scored():
    assert redundant(*observed([False] * 4, SCORE, ADJUSTED, GRAM)) == [None] * 4
    assert redundant(*observed(MASK, SCORE, ADJUSTED, None)) is None
    assert redundant(*observed(MASK, None, None, GRAM)) is None


def test_the_event_says_it_by_the_place_in_the_batch():
    made = observed(MASK, SCORE, ADJUSTED, GRAM, skipped=(3,))
    event = selection_event(*made, None, None, {})
    assert event["redundant"] == [None, [0, -0.8, 0.75], None, None]
    made = observed(MASK, None, None, None)
    assert selection_event(*made, None, None, {})["redundant"] is None
