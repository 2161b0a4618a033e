"""The folders of TRACE and Long Sequence as tasks."""

import json

import pytest
import tiny_text

from oasis.lab.data.benchmarks import (
    LABELLED,
    LONG_SEQUENCE,
    TRACE,
    exact_match,
    first_character,
    normalised_match,
    read_instructions,
    read_long_sequence,
    read_task_config,
    read_trace,
)
from oasis.lab.data.tasks import Example
from oasis.lab.evaluate import choice_accuracy


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def trace(tmp_path):
    for name in ("FOMC", "Py150"):
        for split, count in (("train", 9), ("eval", 3), ("test", 4)):
            rows = [
                {"prompt": f"{name} {split} {i} Answer:", "answer": "ABC"[i % 3] if i else "A"}
                for i in range(count)
            ]
            write(tmp_path / name / f"{split}.json", rows)
    return tmp_path


@pytest.fixture
def sequence(tmp_path):
    home = tmp_path / "CL_Benchmark"
    write(home / "TC" / "agnews" / "labels.json", ["red", "green", "blue"])
    for split, count in (("train", 8), ("dev", 2), ("test", 3)):
        rows = [{"sentence": f"one two {split}", "label": "red"} for _ in range(count)]
        write(home / "TC" / "agnews" / f"{split}.json", rows)
    return home


def test_trace(trace):
    task = read_trace(trace, "FOMC")
    assert task.train[2] == Example("FOMC train 2 Answer:", "C")
    assert len(task.train) == 9 and len(task.test) == 4
    assert task.choices == ("A", "B", "C")
    assert read_trace(trace, "Py150").choices == ()
    assert "eval" in read_trace(trace, "FOMC", held_out="eval").test[0].prompt


def test_drawn_examples_depend_on_the_seed_alone(trace):
    first = read_trace(trace, "FOMC", train=5, test=2, seed=1)
    assert len(set(first.train)) == 5 and len(first.test) == 2
    again = read_trace(trace, "FOMC", train=5, test=2, seed=1)
    assert again == first
    assert read_trace(trace, "FOMC", train=5, seed=2).train != first.train


def test_long_sequence(sequence):
    task = read_long_sequence(sequence, "TC", "AG News", "Choose the topic.\n")
    assert task.train[0] == Example(
        "Choose the topic.\nOption: red, green, blue\none two train\nAnswer:", "red"
    )
    assert task.choices == ("red", "green", "blue")
    assert (len(task.train), len(task.test)) == (8, 3)
    dev = read_long_sequence(sequence, "tc", "agnews", "x", held_out="dev", train=2)
    assert (len(dev.train), len(dev.test)) == (2, 2)
    accuracy = choice_accuracy(tiny_text.model(), tiny_text.tokenizer(), task)
    assert accuracy in (0.0, 1.0)  # three times the same question


def test_configurations(tmp_path):
    write(tmp_path / "t.json", {"TC": [{"sampling strategy": "full", "dataset name": "dbpedia"}]})
    write(tmp_path / "i.json", {"TC": [{"instruction_type": "zero-shot", "instruction": "Do."}]})
    assert read_task_config(tmp_path / "t.json") == [("TC", "dbpedia")]
    assert read_instructions(tmp_path / "i.json") == {"TC": "Do."}
    with pytest.raises(ValueError, match="t.json.*instruction"):
        read_instructions(tmp_path / "t.json")
    with pytest.raises(ValueError, match="i.json.*dataset name"):
        read_task_config(tmp_path / "i.json")


def test_orders_of_the_papers():
    assert len(set(TRACE)) == 8 and len(set(LONG_SEQUENCE)) == 15
    assert set(LABELLED) < set(TRACE)
    assert {kind for kind, _ in LONG_SEQUENCE} == {
        *("SC", "TC", "NLI", "QQP", "BoolQA", "MultiRC", "COPA", "WiC")
    }


def test_what_is_missing_is_named(trace, sequence):
    with pytest.raises(FileNotFoundError, match=r"C-STANCE.train\.json: not found"):
        read_trace(trace, "C-STANCE")
    (trace / "FOMC" / "test.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.json.*has eval\.json, train\.json"):
        read_trace(trace, "FOMC")
    with pytest.raises(FileNotFoundError, match="yahoo.*expected one of: agnews"):
        read_long_sequence(sequence, "TC", "yahoo", "x")
    with pytest.raises(FileNotFoundError, match="NLI.*expected one of: TC"):
        read_long_sequence(sequence, "NLI", "RTE", "x")
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        read_long_sequence(sequence / "nowhere", "NLI", "RTE", "x")


def test_what_is_not_of_the_format_is_named(trace, sequence):
    with pytest.raises(ValueError, match="held_out: got 'dev'"):
        read_trace(trace, "FOMC", held_out="dev")
    with pytest.raises(ValueError, match="held_out: got 'eval'"):
        read_long_sequence(sequence, "TC", "agnews", "x", held_out="eval")
    with pytest.raises(ValueError, match="train: got 10 examples .* expected 1 to 9"):
        read_trace(trace, "FOMC", train=10)
    write(trace / "FOMC" / "test.json", [{"prompt": "a", "answer": 3}])
    with pytest.raises(ValueError, match='entry 0: expected texts "prompt" and "answer"'):
        read_trace(trace, "FOMC")
    (trace / "FOMC" / "train.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_trace(trace, "FOMC")
    write(sequence / "TC" / "agnews" / "test.json", [{"sentence": "a", "label": "pink"}])
    with pytest.raises(ValueError, match="entry 0: got the label 'pink'"):
        read_long_sequence(sequence, "TC", "agnews", "x")
    write(sequence / "TC" / "agnews" / "labels.json", {})
    with pytest.raises(ValueError, match="labels.json: expected a list of strings"):
        read_long_sequence(sequence, "TC", "agnews", "x")


def test_metrics():
    assert exact_match([" A", "b"], ["A", "B"]) == 0.5
    assert normalised_match(["Very  negative.", "no"], ["very negative", "yes"]) == 0.5
    assert first_character(["B because", ""], ["B", "A"]) == 0.5
    with pytest.raises(ValueError):
        exact_match(["a"], [])
