"""Near-duplicates: verbatim or cut shorter, the question kept."""

import pytest

from oasis.lab.data.repeats import with_repeats
from oasis.lab.data.tasks import Example

TEXTS = [
    Example(f"Text: {' '.join(f'w{i}x{k}' for k in range(20))}\nKind:", f"a{i}") for i in range(5)
]


def test_originals_come_first_and_repeats_belong_to_one():
    out = with_repeats(TEXTS, 40, seed=1)
    assert out[:5] == TEXTS and len(out) == 45
    for index, repeat in enumerate(out[5:]):
        (original,) = [e for e in TEXTS if e.answer == repeat.answer]
        if index % 2 == 0:
            assert repeat == original
            continue
        text, _, question = repeat.prompt.rpartition("\n")
        whole = original.prompt.rpartition("\n")[0]
        assert question == "Kind:" and whole.startswith(text + " ")
        assert 10.5 - 0.5 <= len(text.split()) <= 18.9 + 0.5
    assert len({e.answer for e in out[5:]}) > 1
    assert out == with_repeats(TEXTS, 40, seed=1) != with_repeats(TEXTS, 40, seed=2)


def test_nothing_to_repeat():
    assert with_repeats(TEXTS, 0) == TEXTS
    for examples, count in (([], 1), (TEXTS, -1)):
        with pytest.raises(ValueError, match="count: got"):
            with_repeats(examples, count)
