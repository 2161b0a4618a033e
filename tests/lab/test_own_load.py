"""Rows of one's own as tasks: splits, closed sets of answers, and everything that is left out."""

import json
import os

import pytest
from pydantic import TypeAdapter
from tiny_text import tokenizer

from oasis.lab.config import RunConfig
from oasis.lab.data.encoded import prompt_of
from oasis.lab.data.own.load import load
from oasis.lab.data.own.settings import Data
from oasis.lab.data.own.store import Items, Store
from oasis.train.batch.columns import ITEM

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pairs(count, answers=("red", "green")):
    """Questions of three words, all different, answered in turn."""
    return [
        {
            "prompt": f"Text : {WORDS[i % 8]} {WORDS[i // 8 % 8]} {WORDS[i // 64]} Label :",
            "completion": answers[i % len(answers)],
        }
        for i in range(count)
    ]


def settings_of(value):
    return TypeAdapter(Data).validate_python(value)


def loaded(value, max_length=64, seed=0):
    return load(settings_of(value), tokenizer(), max_length, seed)


def asked(items):
    return {tuple(prompt_of(item)) for item in items}


def test_the_split_is_of_what_is_asked_and_not_of_the_order(tmp_path):
    rows = pairs(100)
    (task,) = loaded(rows_file(tmp_path / "a.jsonl", rows)).tasks
    assert (len(task.train), len(task.test)) == (90, 10) and task.name == "a"
    assert not asked(task.train) & asked(task.test)
    (again,) = loaded(rows_file(tmp_path / "b.jsonl", rows[::-1])).tasks
    assert asked(again.test) == asked(task.test)
    (other,) = loaded(rows_file(tmp_path / "c.jsonl", rows), seed=1).tasks
    assert asked(other.test) != asked(task.test)
    (none,) = loaded({"path": str(tmp_path / "a.jsonl"), "test_share": 0}).tasks
    assert (len(none.train), len(none.test)) == (100, 0)


def test_a_question_is_on_one_side_however_often_it_comes(tmp_path):
    rows = pairs(20) + [dict(row, completion="blue") for row in pairs(20)] + pairs(20)
    (task,) = loaded({"path": rows_file(tmp_path / "a.jsonl", rows), "test_share": 0.5}).tasks
    assert not asked(task.train) & asked(task.test)
    assert len(task.train) == len(task.test) == 30


def test_every_row_keeps_its_key_and_its_number(tmp_path):
    path = rows_file(tmp_path / "a.jsonl", pairs(30))
    found = loaded(path)
    (task,) = found.tasks
    items = [*task.train, *task.test]
    assert sorted(int(item["key"].removeprefix(f"{path}:")) for item in items) == [*range(1, 31)]
    for item in items:
        line = int(item["key"].rpartition(":")[2]) - 1
        assert item["answer"] == pairs(30)[line]["completion"]
        assert found.store.rows[item[ITEM]]["key"] == item["key"]


def test_files_and_columns_make_tasks(tmp_path):
    one = rows_file(tmp_path / "one.jsonl", pairs(20))
    two = rows_file(tmp_path / "two.jsonl", pairs(30))
    both = loaded([one, two]).tasks
    assert [(t.name, len(t.train), len(t.test)) for t in both] == [("one", 18, 2), ("two", 27, 3)]
    assert both[1].train[0]["key"].startswith(two)
    rows = [dict(row, task=("b", "a")[i % 2], item=None) for i, row in enumerate(pairs(40))]
    column = rows_file(tmp_path / "column.jsonl", rows)
    assert [(t.name, len(t.train)) for t in loaded({"path": column, "task": "task"}).tasks] == [
        *(("b", 18), ("a", 18))
    ]
    assert len(loaded(column).tasks) == 1  # columns that are not asked for disturb nobody
    with pytest.raises(ValueError, match=r'column.jsonl:1: got None as "item", expected the name'):
        loaded({"path": column, "task": "item"})


def test_files_of_one_name_are_two_tasks(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    paths = [rows_file(tmp_path / name / "rows.jsonl", pairs(20)) for name in ("a", "b")]
    assert [task.name for task in loaded(paths).tasks] == paths


def test_held_out_files(tmp_path):
    train = rows_file(tmp_path / "train.jsonl", pairs(20))
    test = rows_file(tmp_path / "test.jsonl", pairs(30)[20:])
    (task,) = loaded({"path": train, "test": test}).tasks
    assert (task.name, len(task.train), len(task.test)) == ("train", 20, 10)
    with pytest.raises(ValueError, match="test: got one file for several paths"):
        loaded({"path": [train, test], "test": test})
    column = rows_file(tmp_path / "c.jsonl", [dict(row, task="x") for row in pairs(4)])
    other = rows_file(tmp_path / "d.jsonl", [dict(row, task="y") for row in pairs(4)])
    mixed = rows_file(tmp_path / "e.jsonl", [dict(row, task="z") for row in pairs(4)])
    with pytest.raises(ValueError, match="e.jsonl:1: of the task 'z', of which there are no rows"):
        loaded({"path": [column, other], "test": mixed, "task": "task"})


def test_a_closed_set_of_answers_is_found_or_given(tmp_path):
    path = rows_file(tmp_path / "a.jsonl", pairs(40))
    found = loaded(path)
    assert found.tasks[0].choices == ("green", "red")
    assert any("judged by its answers, green, red" in line for line in found.said)
    assert found.tasks[0].choice_ids["pair"] == [[14, 0], [13, 0]]  # each with its end
    assert loaded({"path": path, "answers": []}).tasks[0].choices == ()
    given = loaded({"path": path, "answers": ["red", "blue"]})
    assert given.tasks[0].choices == ("red", "blue")
    assert any("20 with another answer than data.answers has" in line for line in given.said)


@pytest.mark.parametrize("around", ["{}", " {}", "\n{}", "{}\n", "  {} "])
def test_answers_are_judged_in_the_white_space_that_they_are_learnt_in(tmp_path, around):
    answers = [around.format(answer) for answer in ("red", "green")]
    (task,) = loaded(rows_file(tmp_path / "a.jsonl", pairs(40, answers))).tasks
    assert task.choices == ("green", "red")
    (ids,) = task.choice_ids.values()
    for item in (*task.train, *task.test):
        learnt = [label for label in item["labels"] if label != -100]
        assert learnt == ids[task.choices.index(item["answer"])]


def test_answers_that_are_none_of_those_given_are_counted_however_many_there_are(tmp_path):
    long = [dict(row, completion="green " * 20) for row in pairs(10)]
    path = rows_file(tmp_path / "a.jsonl", long + pairs(40, WORDS * 4))
    given = loaded({"path": path, "answers": ["one", "two"]})
    assert any("40 with another answer than data.answers has" in line for line in given.said)
    with pytest.raises(ValueError, match="data.answers: no row of the task 'a' is answered by one"):
        loaded({"path": path, "answers": ["yes", "no"]})


def test_held_out_rows_of_a_task_without_any_to_train_on_are_refused_if_there_is_one_too(tmp_path):
    train = rows_file(tmp_path / "c.jsonl", [dict(row, task="x") for row in pairs(4)])
    test = rows_file(tmp_path / "d.jsonl", [dict(row, task="y") for row in pairs(4)])
    with pytest.raises(ValueError, match="d.jsonl:1: of the task 'y', of which there are no rows"):
        loaded({"path": train, "test": test, "task": "task"})


@pytest.mark.parametrize("seed", range(6))
def test_a_question_that_is_most_of_the_rows_is_not_held_out(tmp_path, seed):
    same = [dict(row, prompt="Text : one Label :") for row in pairs(120)]
    path = rows_file(tmp_path / "a.jsonl", same + pairs(80))
    (task,) = loaded(path, seed=seed).tasks
    assert 18 <= len(task.test) <= 20
    alone = loaded(rows_file(tmp_path / "b.jsonl", same), seed=seed)
    assert len(alone.tasks[0].train) == 120
    assert any("b: nothing is held out, since its rows ask the same" in x for x in alone.said)


@pytest.mark.parametrize("answers", [WORDS, ("red",), ("red", "green " * 8)])
def test_free_text_is_not_taken_for_a_closed_set(tmp_path, answers):
    path = rows_file(tmp_path / "a.jsonl", pairs(40, answers))  # 8 x 5, 1, or a long one
    assert loaded(path).tasks[0].choices == ()


def test_answers_need_rows_that_end_in_one(tmp_path):
    path = rows_file(tmp_path / "a.jsonl", [{"text": "red green"}] * 4)
    with pytest.raises(ValueError, match="data.answers: rows of the task 'a' have no single"):
        loaded({"path": path, "answers": ["red"]})


def test_what_is_cut_dropped_or_empty_is_counted(tmp_path):
    rows = pairs(20)
    rows[0]["prompt"] = "one " * 30
    rows[1]["completion"] = ""
    rows[2]["completion"] = None
    rows[3]["prompt"] = "   "
    found = loaded(rows_file(tmp_path / "a.jsonl", rows), max_length=12)
    share = "(data.test_share 0.1, by a digest of what they ask)"
    assert found.said[:3] == [
        f"a: 20 rows, 15 to train on, 2 held out {share}",
        "a: 1 cut to 12 tokens",
        "a: 3 left out, for they are empty",
    ]
    none = rows_file(tmp_path / "b.jsonl", [{"prompt": "a", "completion": ""}])
    with pytest.raises(ValueError, match="'b' has no rows to train on, of 1 .* they are empty"):
        loaded(none)
    with pytest.raises(ValueError, match="data: .*c.jsonl has no rows"):
        loaded(rows_file(tmp_path / "c.jsonl", []))


def test_the_digest_is_of_what_is_learnt(tmp_path):
    rows = pairs(20)
    first = loaded(rows_file(tmp_path / "a.jsonl", rows)).digest
    rows[7]["completion"] = "blue"
    assert loaded(rows_file(tmp_path / "a.jsonl", rows)).digest != first
    rows[7]["completion"] = pairs(20)[7]["completion"]
    assert loaded(rows_file(tmp_path / "a.jsonl", rows)).digest == first


def test_at_most_so_many_rows(tmp_path):
    found = loaded({"path": rows_file(tmp_path / "a.jsonl", pairs(50)), "rows": 10})
    assert found.store.count == 10


def test_rows_lie_on_disk(tmp_path):
    """What a row takes in memory is its place: 8 bytes, and 8 of a digest."""
    found = loaded(rows_file(tmp_path / "a.jsonl", pairs(50) * 50))
    (cache,) = found.store.rows.cache_files
    assert os.path.getsize(cache["filename"]) > 2500 * 40
    assert found.tasks[0].train.numbers.itemsize == 8
    assert (
        found.tasks[0].train[2000]["input_ids"]
        == found.store.rows[found.tasks[0].train.numbers[2000]]["input_ids"]
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "data.path: got \\[\\], expected at least one file"),
        ([], "data.path: got \\[\\], expected at least one file"),
        (3, "data: got 3 .*, expected a file, a list of files, or a mapping"),
        ({"path": "a", "pth": "b"}, "data.pth: unknown setting; the nearest is 'path'"),
        (
            {"path": "a", "test_share": 1},
            "data.test_share: got 1, expected a number in",
        ),
        ({"path": "a", "test_share": "x"}, "data.test_share: got 'x'"),
        ({"path": "a", "rows": 0}, "data.rows: got 0"),
        ({"path": "a", "rows": True}, "data.rows: got True"),
        ({"path": "a", "chat": "yes"}, "data.chat: got 'yes'"),
        ({"path": "a", "answers": [True]}, "data.answers"),
        ({"path": ["a", "a"]}, "data.path: got .* each once"),
        ({"path": ["a", "b"], "test": ["c", "d", "e"]}, "data.test: got 3 files"),
    ],
)
def test_settings_are_refused_by_name(value, says):
    with pytest.raises(ValueError, match=says):
        RunConfig(data=value)


def test_settings_come_back_from_a_file(tmp_path):
    config = RunConfig(data={"path": "~/a.jsonl", "answers": ["x"], "test_share": 0.2})
    assert config.data.path == [os.path.expanduser("~/a.jsonl")]
    config.save(tmp_path / "config.yaml")
    assert RunConfig.load(tmp_path / "config.yaml") == config
    assert config.replace(rank=2).data == config.data and config.replace(rank=2).epochs == 1


@pytest.mark.parametrize("mask", ["0000", "1111", "0110", "1001", "0101", "1"])
def test_labels_come_back_as_they_were(mask):
    ids = list(range(7, 7 + len(mask)))
    labels = [token if bit == "1" else -100 for token, bit in zip(ids, mask, strict=True)]
    store = Store()
    store.add(input_ids=ids, labels=labels, key="k", answer="", style="")
    (item,) = Items(store, [0])
    assert item["input_ids"] == ids and item["labels"] == labels and item[ITEM] == 0
