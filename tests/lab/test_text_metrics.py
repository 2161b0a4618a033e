"""Metrics of generated text, by hand and against published values."""

import builtins

import pytest

from oasis.lab.metrics import METRICS, check_metric, sari_of


def score(name, predictions, answers, prompts=None):
    return METRICS[name](predictions, answers, prompts or [""] * len(answers))


def test_matches():
    assert score("exact", [" A\n", "b"], ["A", "B"]) == 0.5
    assert score("normalised", ["Very  negative.", "no"], ["very negative", "yes"]) == 0.5
    assert score("first_character", ["B because", ""], ["B", "A"]) == 0.5
    with pytest.raises(ValueError):
        score("exact", ["a"], [])


@pytest.mark.parametrize(
    "same",
    [("CAFE\u0301", "café"), ("ＹＥＳ", "yes"), ("Straße", "STRASSE"), ("ﬁne", "fine")],
)
def test_the_forms_of_one_text_are_the_same(same):
    assert score("normalised", [same[0]], [same[1]]) == 1.0
    assert score("normalised", [same[0] + "x"], [same[1]]) == 0.0


def test_rouge_l_counts_words_of_any_script():
    # longest common subsequence 3, precision 3/3, recall 3/4
    assert score("rouge_l", ["the cat sat"], ["the black cat sat"]) == pytest.approx(6 / 7)
    assert score("rouge_l", ["Ärzte öffnen"], ["Ärzte öffnen Türen"]) == pytest.approx(4 / 5)


def test_fuzzy_ratio():
    # of 3 + 3 characters one is deleted and one inserted
    assert score("fuzzy", ["abc"], ["abd"]) == pytest.approx(1 - 2 / 6)


@pytest.mark.parametrize(
    ("prediction", "expected"),  # the examples of the paper's own program, 0/0 read as 1
    [
        ("About 95 you now get in.", 0.26953601953601954),
        ("About 95 species are now agreed.", 0.6170965608465608),
        ("About 95 species are currently agreed.", 0.5088681849551414),
    ],
)
def test_sari(prediction, expected):
    source = "About 95 species are currently accepted."
    references = [
        "About 95 species are currently known.",
        "About 95 species are now accepted.",
        "95 species are now accepted.",
    ]
    assert sari_of(prediction, references, source) == pytest.approx(expected, abs=1e-12)


def test_sari_is_of_the_prompt():
    perfect = score("sari", ["a short text"], ["a short text"], ["a long and winding text"])
    assert perfect == 1.0
    assert score("sari", ["a long text"], ["a short text"], ["a long text"]) < 0.6


def test_an_unknown_metric_and_a_missing_library_are_named(monkeypatch):
    with pytest.raises(ValueError, match="metric: got 'bleu', expected one of exact, normalised"):
        check_metric("bleu")
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("rapidfuzz"):
            raise ModuleNotFoundError(name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(ValueError, match=r"rapidfuzz.*oasis-select\[metrics\]"):
        check_metric("fuzzy")
