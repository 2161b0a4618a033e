"""Metrics of generated text, each the mean over examples of a score in [0, 1]; losses in words.

>>> normalised(["  The CAFE\\u0301! "], ["the café"], [""])
1.0
"""

from __future__ import annotations

import importlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Texts = Sequence[str]
Metric = Callable[[Texts, Texts, Texts], float]  # of predictions, answers, prompts


def exact(predictions: Texts, answers: Texts, prompts: Texts) -> float:
    """Share of predictions that are the answer, but for white space around them."""
    return _mean(lambda p, a: p.strip() == a.strip(), predictions, answers)


def normalised(predictions: Texts, answers: Texts, prompts: Texts) -> float:
    """Share of predictions that are the answer, but for case, punctuation, white space and the
    forms that Unicode has of one text (NFKC: composed accents, full-width letters).
    """
    return _mean(lambda p, a: normalise(p) == normalise(a), predictions, answers)


def first_character(predictions: Texts, answers: Texts, prompts: Texts) -> float:
    """Share of predictions whose first character is the answer's (ScienceQA: A, B, ...)."""
    return _mean(lambda p, a: p.strip()[:1] == a.strip()[:1], predictions, answers)


def rouge_l(predictions: Texts, answers: Texts, prompts: Texts) -> float:
    """Mean F1 of the longest common subsequence of words, of any script (rouge-score)."""
    scorer = _library("rouge_score.rouge_scorer").RougeScorer(["rougeL"], tokenizer=_Words())
    return _mean(lambda p, a: scorer.score(a, p)["rougeL"].fmeasure, predictions, answers)


def fuzzy(predictions: Texts, answers: Texts, prompts: Texts) -> float:
    """Mean similarity by the insertions and deletions between two texts (rapidfuzz)."""
    ratio = _library("rapidfuzz.fuzz").ratio
    return _mean(lambda p, a: ratio(p.strip(), a.strip()) / 100, predictions, answers)


def sari(predictions: Texts, answers: Texts, prompts: Texts) -> float:
    """Mean SARI (Xu et al., 2016) of simplifications of the prompts, with one reference each."""
    return _mean(lambda p, a, s: sari_of(p, [a], s), predictions, answers, prompts)


METRICS: dict[str, Metric] = {
    metric.__name__: metric for metric in (exact, normalised, first_character, rouge_l, fuzzy, sari)
}
LIBRARIES = {"rouge_l": "rouge_score.rouge_scorer", "fuzzy": "rapidfuzz.fuzz"}


def check_metric(name: str) -> None:
    """ValueError where there is no such metric, or the library that computes it is missing."""
    if name not in METRICS:
        raise ValueError(f"metric: got {name!r}, expected one of {', '.join(METRICS)}")
    if name in LIBRARIES:
        _library(LIBRARIES[name])


def normalise(text: str) -> str:
    """Lower case, NFKC, without punctuation, white space made single."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub(r"[^\w\s]", "", text).split())


def perplexity(loss: float) -> float:
    """exp of a loss in nats; infinite where that is no number any more."""
    return math.exp(loss) if loss < 700 else math.inf


def loss_text(loss: float) -> str:
    """A loss in nats, and its perplexity."""
    return f"loss {loss:.3f} (perplexity {perplexity(loss):.4g})"


def _mean(score: Callable[..., float], *texts: Texts) -> float:
    scores = [float(score(*row)) for row in zip(*texts, strict=True)]
    return sum(scores) / len(scores)


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ValueError(
            f"metric: needs {package}, of the extra [metrics]: pip install 'oasis-select[metrics]'"
        ) from error


class _Words:
    """A tokenizer for rouge-score, whose own drops all letters but ASCII's."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+", text.casefold())


def sari_of(prediction: str, references: Texts, source: str) -> float:
    """SARI of one text: the mean over n-grams of 1 to 4 words of the F1 of what is kept and of what
    is added, and the precision of what is deleted.
    """
    total = 0.0
    for n in range(1, 5):
        # As often as there are references, whose n-grams are counted together.
        before, after = (_grams(text, n, len(references)) for text in (source, prediction))
        wanted = sum((_grams(text, n) for text in references), Counter())
        total += _kept(before, after, wanted) + _added(before, after, wanted)
        total += _precision(before - after, wanted)
    return total / 12


def _grams(text: str, n: int, times: int = 1) -> Counter:
    words = re.findall(r"\w+|[^\w\s]", text.casefold())
    found = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    return Counter({gram: times * count for gram, count in found.items()})


def _kept(before: Counter, after: Counter, wanted: Counter) -> float:
    kept, right = before & after, before & wanted
    good = kept & right
    precision = _ratio(sum(good[gram] / kept[gram] for gram in good), len(kept))
    return _f1(precision, _ratio(good.total(), right.total()))


def _added(before: Counter, after: Counter, wanted: Counter) -> float:
    added, right = after.keys() - before.keys(), wanted.keys() - before.keys()
    good = added & right
    return _f1(_ratio(len(good), len(added)), _ratio(len(good), len(right)))


def _precision(deleted: Counter, wanted: Counter) -> float:
    good = deleted - wanted
    return _ratio(sum(good[gram] / deleted[gram] for gram in good), len(deleted))


def _ratio(part: float, whole: float) -> float:
    """1 where nothing was asked for: nothing was done wrong."""
    return part / whole if whole else 1.0


def _f1(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0
