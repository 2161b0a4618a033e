"""Rows of every kind of file, what their fields mean, and what is said of damaged ones."""

import json

import datasets
import pytest

from oasis.lab.data.own.fields import find_layout
from oasis.lab.data.own.rows import Row, read_rows

ASSISTANT = ("assistant", "a")
TURNS = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


def lines(count):
    return [{"prompt": f"What follows {i}?", "completion": str(i + 1)} for i in range(count)]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_json_lines_keep_their_text_and_number(tmp_path):
    text = (
        '\ufeff{"prompt": "a",  "completion": "ü"}\r\n\n{"prompt":"b","completion":"c"}\r{"x": 1}'
    )
    path = write(tmp_path / "rows.jsonl", text)
    rows = list(read_rows(path))
    assert [row.key for row in rows] == [f"{path}:1", f"{path}:3", f"{path}:4"]
    assert rows[0].line == '{"prompt": "a",  "completion": "ü"}'  # to the letter
    assert rows[1].values == {"prompt": "b", "completion": "c"}


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_json_is_a_list_or_json_lines(tmp_path, mark):
    rows = lines(3)
    whole = write(tmp_path / "a.json", mark + json.dumps(rows, indent=1).encode())
    apart = write(tmp_path / "b.json", mark + "\n".join(map(json.dumps, rows)).encode())
    assert [row.values for row in read_rows(whole)] == rows
    assert [row.values for row in read_rows(apart)] == rows
    assert [row.key for row in read_rows(whole)][2] == f"{whole}[2]"


def test_tables_keep_line_breaks_and_types(tmp_path):
    text = '\ufeffprompt,completion\n"one\ntwo","a, b"\n\n007,"say ""x"""\r\nlast,1.50\n'
    path = write(tmp_path / "t.csv", text)
    rows = list(read_rows(path))
    assert [tuple(row.values.values()) for row in rows] == [
        *(("one\ntwo", "a, b"), ("007", 'say "x"'), ("last", "1.50"))
    ]
    assert [row.key for row in rows] == [f"{path}:{line}" for line in (2, 5, 6)]
    tabs = write(tmp_path / "t.tsv", "prompt\tcompletion\na\tb, c\n")
    assert next(read_rows(tabs)).values == {"prompt": "a", "completion": "b, c"}


def test_parquet_and_saved_folders(tmp_path):
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    made = datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": [1, 0]}, features)
    made.to_parquet(str(tmp_path / "t.parquet"))
    made.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=made, test=made.select([0])).save_to_disk(str(tmp_path / "two"))
    for source, split, name in (
        ("t.parquet", "train", "t.parquet"),
        ("one", "train", "one"),
        ("two", "train", "two/train"),
        ("two", "test", "two/test"),
    ):
        rows = list(read_rows(str(tmp_path / source), split=split))
        assert rows[0].key == f"{tmp_path / name}[0]"
        assert rows[0].values == {"sentence": "a", "label": "yes"}  # the label by its name
        assert len(rows) == (1 if split == "test" else 2)
        assert json.loads(rows[0].line) == rows[0].values
    with pytest.raises(ValueError, match="data.split: got 'dev', .* has train, test"):
        list(read_rows(str(tmp_path / "two"), split="dev"))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_name_on_the_hub_goes_through_the_library(monkeypatch, streaming):
    seen = {}

    def load_dataset(*arguments, **options):
        seen.update(arguments=arguments, **options)
        made = datasets.Dataset.from_list(lines(2))
        return made.to_iterable_dataset() if streaming else made

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = list(read_rows("someone/rows", split="test", subset="en", streaming=streaming))
    assert [row.values for row in rows] == lines(2)
    assert rows[1].key == "someone/rows/test[1]"
    assert seen == {"arguments": ("someone/rows", "en"), "split": "test", "streaming": streaming}


@pytest.mark.parametrize(
    ("name", "content", "where", "says"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', ":2", "not JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', ":2", "got a list, expected an object"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', ":2", "byte 0xff"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), "", "UTF-16"),
        ("a.json", "{}", "", "got an object, expected a list"),
        ("a.json", '[{"a": 1}, 2]', "[1]", "got a number, expected an object"),
        ("a.json", "[", "", "not JSON"),
        ("a.csv", "a,b\n1,2\n3\n", ":3", "got 1 cells, expected 2"),
        ("a.csv", "a,a\n1,2\n", ":1", "column 'a' twice"),
        ("a.csv", "a,\n1,2\n", ":1", "without a name"),
        ("a.csv", 'a,b\n1,"2\n', ":2", "not a table"),
        ("a.csv", b"a,b\n1,\xff\n", "", "byte 0xff in line 2"),
        ("a.parquet", "PAR1", "", "not a Parquet file"),
    ],
)
def test_a_damaged_row_is_named(tmp_path, name, content, where, says):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError) as error:
        list(read_rows(path))
    assert str(error.value).startswith(f"{path}{where}: ") and says in str(error.value)


def test_half_a_character_in_a_field_that_nobody_uses_stays_as_it_was(tmp_path):
    rows = [{"prompt": "a", "completion": "b", "note": "\ud800"}]
    (row,) = read_rows(write(tmp_path / "a.json", json.dumps(rows)))
    assert json.loads(row.line.encode()) == rows[0] == row.values


def test_what_is_no_source_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file .*absent.jsonl"):
        read_rows(str(tmp_path / "absent.jsonl"))
    with pytest.raises(ValueError, match=r"a.txt, expected one of \.jsonl, \.json, \.csv"):
        read_rows(write(tmp_path / "a.txt", "x"))
    with pytest.raises(ValueError, match="has none of .*save_to_disk"):
        read_rows(str(tmp_path))


def sample(values, **fields):
    row = Row("here:1", values, "")
    return find_layout(row, **fields).sample(row)


@pytest.mark.parametrize(
    ("values", "turns"),
    [
        ({"prompt": "q", "completion": "a"}, [("user", "q"), ("assistant", "a")]),
        ({"prompt": "q", "answer": 4}, [("user", "q"), ("assistant", "4")]),
        ({"question": "q", "answer": "a", "task": None}, [("user", "q"), ("assistant", "a")]),
        ({"sentence": "q", "label": 1}, [("user", "q"), ("assistant", "1")]),
        ({"instruction": "do", "output": "a"}, [("user", "do"), ("assistant", "a")]),
        ({"instruction": "do", "input": "", "output": "a"}, [("user", "do"), ("assistant", "a")]),
        (
            {"instruction": "do", "input": "x", "output": "a"},
            [("user", "do\nx"), ("assistant", "a")],
        ),
        ({"messages": TURNS}, [("user", "hello"), ("assistant", "hi")]),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, [("user", "hello"), ("assistant", "hi")]),
        ({"prompt": TURNS[:1], "completion": "hi"}, [("user", "hello"), ("assistant", "hi")]),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            [("user", "q"), ("assistant", "a")],
        ),
        ({"text": "all"}, [("assistant", "all")]),
    ],
)
def test_fields_are_found_by_their_usual_names(values, turns):
    assert list(sample(values).turns) == turns


def test_fields_are_taken_as_given():
    values = {"q": "x", "a": "y", "chat": TURNS, "body": "z", "prompt": "p", "completion": "c"}
    assert sample(values, prompt="q", completion="a").turns == (("user", "x"), ("assistant", "y"))
    assert sample(values, messages="chat").turns[1] == ("assistant", "hi")
    assert sample(values, text="body").turns == (("assistant", "z"),)


@pytest.mark.parametrize(
    ("values", "fields", "says"),
    [
        (
            {"a": 1},
            {},
            'here:1: got the fields "a", expected messages, or conversations, or prompt',
        ),
        ({"a": 1}, {"text": "b"}, 'here:1: no field "b", got the fields "a"'),
        ({"a": 1}, {"prompt": "a"}, "expected the fields prompt and completion"),
        ({"a": 1}, {"prompt": "a", "completion": "a", "text": "a"}, "got prompt, completion, text"),
        ({"prompt": "a", "completion": 1.5}, {}, 'here:1: got a number as "completion", expected'),
        ({"prompt": "a", "completion": True}, {}, 'here:1: got true as "completion"'),
        ({"prompt": {"a": 1}, "completion": "b"}, {}, 'here:1: got an object as "prompt"'),
        ({"prompt": "a \ud800", "completion": "b"}, {}, "here:1: got half a character ('\\ud800')"),
        ({"messages": "hello"}, {}, 'here:1: got a text as "messages", expected a list of turns'),
        ({"messages": ["hello"]}, {}, 'here:1: got a text as "messages"[0], expected an object'),
        ({"messages": [{"role": "tool", "content": "x"}]}, {}, "here:1: got the role 'tool'"),
        ({"messages": [{"content": "x"}]}, {}, "here:1: got the role None"),
        (
            {"messages": [{"role": "user", "content": [1]}]},
            {},
            'here:1: got a number as "messages"[0] "content"[0], expected {"type": "text"',
        ),
        (
            {"prompt": "a", "completion": "b", "image": "c.png"},
            {},
            "here:1: has an image, and the model takes text alone",
        ),
    ],
)
def test_what_a_row_lacks_is_named(values, fields, says):
    with pytest.raises(ValueError) as error:
        sample(values, **fields)
    assert says in str(error.value)


def test_a_later_row_without_the_field_is_named():
    layout = find_layout(Row("f:1", {"prompt": "a", "completion": "b"}, ""))
    with pytest.raises(ValueError, match='f:7: no field "completion", got the fields "prompt"'):
        layout.sample(Row("f:7", {"prompt": "a"}, ""))


@pytest.mark.parametrize("value", ["", "  \n", None])
def test_empty_samples_know_it(value):
    assert sample({"prompt": "a", "completion": value}).empty
    assert sample({"prompt": value, "completion": "a"}).empty
    assert sample({"text": value}).empty
    assert not sample({"prompt": "a", "completion": "0"}).empty
