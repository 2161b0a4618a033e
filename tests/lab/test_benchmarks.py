"""The folders of TRACE and Long Sequence as tasks."""

import json

import pytest
import tiny_text

from oasis.lab.data.benchmarks import (
    LABELLED,
    LONG_SEQUENCE,
    MEASURED,
    TRACE,
    read_instructions,
    read_long_sequence,
    read_preset,
    read_task_config,
    read_trace,
)
from oasis.lab.data.encoded import encode_task
from oasis.lab.data.prepare import _other_answers
from oasis.lab.data.tasks import Example
from oasis.lab.evaluate import choice_accuracy
from oasis.lab.metrics import METRICS


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
    tokenizer = tiny_text.tokenizer()
    accuracy = choice_accuracy(tiny_text.model(), tokenizer, encode_task(task, tokenizer, 64))
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


def test_a_missing_library_of_a_metric_is_named_when_the_rows_are_read(trace, monkeypatch):
    def without(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("importlib.import_module", without)
    assert read_trace(trace, "FOMC").metric is None
    with pytest.raises(ValueError, match="metric: needs rapidfuzz"):
        read_trace(trace, "Py150")


def test_what_is_not_of_the_format_is_named(trace, sequence):
    with pytest.raises(ValueError, match="held_out: got 'dev'"):
        read_trace(trace, "FOMC", held_out="dev")
    with pytest.raises(ValueError, match="held_out: got 'eval'"):
        read_long_sequence(sequence, "TC", "agnews", "x", held_out="eval")
    with pytest.raises(ValueError, match="train: got 10 examples .* expected 1 to 9"):
        read_trace(trace, "FOMC", train=10)
    write(trace / "FOMC" / "test.json", [{"prompt": "a", "answer": 3}])
    with pytest.raises(ValueError, match='entry 0: got a number as "answer", expected texts'):
        read_trace(trace, "FOMC")
    (trace / "FOMC" / "train.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_trace(trace, "FOMC")
    write(sequence / "TC" / "agnews" / "labels.json", {})
    with pytest.raises(ValueError, match="labels.json: got an object, expected a list"):
        read_long_sequence(sequence, "TC", "agnews", "x")


def test_a_byte_order_mark_is_no_part_of_a_file(trace):
    plain = read_trace(trace, "FOMC")
    for split in ("train", "eval", "test"):
        path = trace / "FOMC" / f"{split}.json"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_trace(trace, "FOMC") == plain


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}', "holds JSON lines"),
        (b'{"prompt": "a", "answer": "b"}', "got an object, expected a list"),
        (b"[]", "got an empty list"),
        (b'[{"prompt": "a"}]', 'entry 0: got no "answer"'),
        (b'[{"prompt": "a", "answer": "b"}, "c"]', "entry 1: got a text, expected an object"),
        (b'[{"prompt": "a", "answer": null}]', 'entry 0: got null as "answer"'),
        ('[{"prompt": "a",\n"answer": "\xe9"}]'.encode("latin-1"), "byte 0xe9 in line 2"),
        ("[]".encode("utf-16"), "UTF-16 text, expected UTF-8"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(trace, content, says):
    (trace / "FOMC" / "train.json").write_bytes(content)
    with pytest.raises(ValueError, match=says) as error:
        read_trace(trace, "FOMC")
    assert str(trace / "FOMC" / "train.json") in str(error.value)


def test_every_task_of_trace_is_judged_by_something(trace):
    assert {*LABELLED, *MEASURED} == set(TRACE) and not set(LABELLED) & set(MEASURED)
    assert set(MEASURED.values()) <= set(METRICS)
    assert read_trace(trace, "Py150").metric == "fuzzy" and read_trace(trace, "FOMC").metric is None


def test_a_label_of_no_choice_is_trained_on_and_never_right(sequence):
    home = sequence / "TC" / "agnews"
    rows = [{"sentence": "one two", "label": label} for label in ("-", "red")]
    write(home / "train.json", rows)
    write(home / "test.json", [{"sentence": "one two", "label": "-"}])
    task = read_long_sequence(sequence, "TC", "agnews", "x")
    assert [example.answer for example in task.train] == ["-", "red"]
    assert task.choices == ("red", "green", "blue")
    tokenizer = tiny_text.tokenizer()
    encoded = encode_task(task, tokenizer, 64)
    assert choice_accuracy(tiny_text.model(), tokenizer, encoded) == 0.0
    (line,) = _other_answers(task)
    assert line.startswith("agnews: 1 of 2 rows to train on and 1 of 1 held out have an answer")


def test_without_an_instruction_the_prompt_is_the_sentence(sequence):
    task = read_long_sequence(sequence, "TC", "agnews", None)
    assert task.train[0] == Example("one two train", "red")


def test_presets(trace, sequence):
    tasks = read_preset("trace", trace, ["Py150", "FOMC"], train=[2, None], test=1)
    assert [task.name for task in tasks] == ["Py150", "FOMC"]
    assert [len(task.train) for task in tasks] == [2, 9] and len(tasks[0].test) == 1
    with pytest.raises(FileNotFoundError, match="no instruction_config.json"):
        read_preset("long_sequence", sequence, ["AG News"], train=[None])
    write(sequence.parent / "instruction_config.json", {"NLI": [{"instruction": "Do."}]})
    for folder in (sequence, sequence.parent):
        (task,) = read_preset("long_sequence", folder, ["AG News"], train=[None])
        assert task.train[0].prompt == "one two train"  # TC has no instruction there
    with pytest.raises(ValueError, match="tasks: got 'bbc', expected some of NumGLUE-ds"):
        read_preset("trace", trace, ["bbc"], train=[None])
