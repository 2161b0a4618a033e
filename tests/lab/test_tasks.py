"""Held-out examples balanced over the answers, and the text of a mail."""

from collections import Counter

import pytest

from oasis.lab.data import tasks
from oasis.lab.data.tasks import Source


@pytest.fixture
def skewed(monkeypatch):
    """Registers a source of 60 'a', 30 'b' and 4 'c'; `held` of them as official test pairs."""

    def add(held: int) -> str:
        labels = ["a"] * 60 + ["b"] * 30 + ["c"] * 4
        pairs = [(f"text {k}", label) for k, label in enumerate(labels)]
        test = pairs[::2][:held]
        train = [pair for pair in pairs if pair not in test]
        source = Source("T: {}\nK:", ("a", "b", "c"), lambda: (train, test))
        monkeypatch.setitem(tasks.SOURCES, "skewed", source)
        return "skewed"

    return add


@pytest.mark.parametrize("held", [0, 47])
def test_balanced_held_out_examples(skewed, held):
    task = tasks.load(skewed(held), test=20, balanced=True)
    counts = Counter(example.answer for example in task.test)
    rare = 2 if held else 4  # all there are
    assert counts["c"] == rare and abs(counts["a"] - counts["b"]) <= 1
    assert len({example.answer for example in task.test[:3]}) == 3  # and so from the beginning
    texts = {example.prompt for example in task.test}
    assert not texts & {example.prompt for example in task.train}
    plain = tasks.load(skewed(held), test=20)
    assert Counter(example.answer for example in plain.test)["a"] > 8


def test_the_text_of_a_mail():
    raw = (
        "From: a@b\nSubject: [list] Re: Cheap and good\nContent-Type: text/html\n\n"
        "<style>p {color: red}</style><p>Buy <b>now</b> &gt; later</p><!-- not this -->"
    )
    assert " ".join(tasks._mail_text(raw).split()) == "Re: Cheap and good. Buy now > later"
