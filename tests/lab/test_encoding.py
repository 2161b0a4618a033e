"""Encoding, label masks and padding; and that the real tasks' readers cut and split as they say."""

from __future__ import annotations

import pytest
import tiny_text
import torch

from oasis.lab.data import tasks
from oasis.lab.data.encoding import Collator, encode
from oasis.lab.data.tasks import Example, Source
from oasis.names import IGNORED
from oasis.train.batch.columns import TASK


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_text.tokenizer()


def test_labels_cover_the_answer_alone(tokenizer):
    encoded = encode(Example("Text : one two Label :", "cat dog"), tokenizer)
    assert tokenizer.decode(encoded["input_ids"]) == "Text : one two Label : cat dog"
    assert encoded["labels"] == [IGNORED] * 6 + encoded["input_ids"][6:]
    with_eos = encode(Example("Text : one two Label :", "cat dog"), tokenizer, eos=True)
    assert with_eos["labels"] == [*encoded["labels"], tokenizer.eos_token_id]


def test_a_long_prompt_keeps_its_end_and_the_answer(tokenizer):
    encoded = encode(Example("one two three four Label :", "cat dog"), tokenizer, max_length=5)
    assert tokenizer.decode(encoded["input_ids"]) == "four Label : cat dog"
    assert encoded["labels"].count(IGNORED) == 3


@pytest.mark.parametrize(
    ("example", "length", "message"),
    [
        (Example("one", "cat dog"), 2, "max_length: got 2, expected more than the answer's 2"),
        (Example("one", "  "), 9, "answer: .* has no tokens"),
        (Example(" ", "cat"), 9, "prompt: .* has no tokens"),
    ],
)
def test_refused(tokenizer, example, length, message):
    with pytest.raises(ValueError, match=message):
        encode(example, tokenizer, length)


@pytest.mark.parametrize("side", ["left", "right"])
def test_collator_pads_and_masks(side):
    items = [
        {"input_ids": [5, 6, 7], "labels": [-100, -100, 7], TASK: 0},
        {"input_ids": [8], "labels": [8], TASK: 2},
    ]
    batch = Collator(0, side)(items)
    left = side == "left"
    assert batch["input_ids"].tolist() == [[5, 6, 7], [0, 0, 8] if left else [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1] if left else [1, 0, 0]]
    assert batch["labels"][1].tolist() == ([-100, -100, 8] if left else [8, -100, -100])
    assert batch[TASK].tolist() == [0, 2]
    assert all(value.dtype == torch.long for value in batch.values())


def test_collator_refuses():
    with pytest.raises(ValueError, match="padding_side"):
        Collator(0, "middle")
    with pytest.raises(ValueError, match="empty batch"):
        Collator(0)([])
    without = Collator(0)([{"input_ids": [1], "labels": [1]}])
    assert TASK not in without


@pytest.fixture
def numbers(monkeypatch):
    pool = [
        (f"text {i % 25} and   more https://x.y/z", "odd" if i % 2 else "even") for i in range(50)
    ]
    monkeypatch.setitem(
        tasks.SOURCES, "numbers", Source("T: {}\nA:", ("even", "odd"), lambda: (pool, []))
    )
    monkeypatch.setitem(
        tasks.SOURCES,
        "split",
        Source("T: {}\nA:", ("even", "odd"), lambda: (pool, [("text 3 and more", "odd")])),
    )


def test_split_is_seeded_disjoint_and_free_of_repeats(numbers):
    task = tasks.load("numbers", test=5)
    prompts = [example.prompt for example in (*task.train, *task.test)]
    assert len(task.test) == 5 and len(prompts) == len(set(prompts)) == 25
    assert all("https" not in prompt and "  " not in prompt for prompt in prompts)
    assert tasks.load("numbers", test=5) == task
    assert tasks.load("numbers", test=5, seed=1).test != task.test
    assert tasks.load("numbers", train=3, test=5).test == task.test


def test_held_out_texts_are_not_trained_on(numbers):
    task = tasks.load("split")
    assert [example.prompt for example in task.test] == ["T: text 3 and more\nA:"]
    assert len(task.train) == 24


def test_tasks_refuse(numbers):
    with pytest.raises(ValueError, match="task: got 'nothing', expected one of adjectives, bbc"):
        tasks.load("nothing")
    with pytest.raises(ValueError, match="train: got 99 examples of task 'numbers', expected 1 to"):
        tasks.load("numbers", train=99)
    with pytest.raises(ValueError, match="exists already"):
        tasks.register("bbc", tasks.SOURCES["bbc"])


def test_texts_are_cut():
    assert tasks.cut("a  b\nc https://t.co/x d<br />e f", 5) == "a b c d e"
