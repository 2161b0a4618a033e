"""What the command line refuses before anything starts: one line, exit 2, nothing written."""

from __future__ import annotations

import os
import re
import sys
import types

import pytest

from oasis import cli
from oasis.lab.compare import Grid, compare
from oasis.lab.config import RunConfig
from oasis.lab.data import assets

RUN = ["name: mine", "out: runs", "tasks: [bbc]", "arrivals: 40", "ratio: 0.25"]


@pytest.fixture
def nothing_happens(tmp_path, monkeypatch):
    """An empty folder to be in, and a failure wherever a run or a download would begin."""

    def never(*args, **kwargs):
        raise AssertionError("it went on")

    monkeypatch.setenv("OASIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(assets, "fetch", never)
    fake = types.ModuleType("oasis.lab.run")
    fake.run = never
    monkeypatch.setitem(sys.modules, "oasis.lab.run", fake)
    monkeypatch.setattr("oasis.lab.compare.runner.compare", never)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def refused(capsys, *arguments: str) -> str:
    before = sorted(os.listdir())
    assert cli.main(list(arguments)) == 2
    text = capsys.readouterr().err.removeprefix("oasis: loading\n")
    assert text.startswith("error: ") and text.count("\n") == 1, text
    assert sorted(os.listdir()) == before
    return text.removeprefix("error: ").strip()


LEFT_OUT = object()
WRONG = [
    ("seed", "4294967296", "got 4294967296, expected an integer from 0, less than 2^32"),
    ("seed", "-1", "got -1"),
    ("data_seed", "1" + 30 * "0", "got 1000"),
    ("device", "cuda:99", "got 'cuda:99', expected 'auto' or one of this machine: cpu"),
    ("device", "warp", "got 'warp'"),
    ("device", "meta", "got 'meta'"),
    ("dtype", "float33", "got 'float33', expected 'auto', float32, bfloat16"),
    ("dtype", "int64", "got 'int64'"),
    ("dtype", "float8_e4m3fn", "got 'float8_e4m3fn'"),
    ("model", '"a\\0b"', "got 'a\\x00b', expected a text without NUL"),
    ("out", '"a\\0b"', "got 'a\\x00b'"),
    ("label", '"a\\ud800"', "got 'a\\ud800', expected a text without NUL and surrogates"),
    ("tasks", '["a\\0b"]', "got 'a\\x00b'"),
    ("tasks", "[bbc, weather]", "got 'weather', expected some of"),
    ("model", "./no_such_folder", "no folder ./no_such_folder"),
    ("model", "../bare", "the folder ../bare has no tokenizer (tokenizer.json"),
    ("learning_rate", ".inf", "got inf, expected a number in (0, 1]"),
    ("learning_rate", ".nan", "got nan"),
    ("learning_rate", "-1.0e-3", "got -0.001"),
    ("learning_rate", "1e400", "got inf,"),
    ("learning_rate", "1e39", "got '1e39'"),
    ("learning_rate", "5", "got 5,"),
    ("batch_size", "2147483648", "got 2147483648, expected an integer from 1, less than 2^31"),
    ("arrivals", "[99999999999]", "got 99999999999, expected an integer from 1, less than 2^31"),
    ("iterations_per_sample", "1.0e+9", "got 1000000000.0 for 40 arrivals"),
    ("policy_options", "{betta: 1}", "betta"),
]
KEYS = [f"{key}={value}" for key, value, _ in WRONG]


@pytest.mark.parametrize(("key", "value", "says"), WRONG, ids=KEYS)
def test_train_names_file_line_and_setting(nothing_happens, capsys, key, value, says):
    (nothing_happens / "bare").mkdir()  # a model without its tokenizer
    (nothing_happens / "bare" / "config.json").write_text("{}")
    lines = [line for line in RUN if not line.startswith(f"{key}:")]
    path = nothing_happens / "run.yaml"
    path.write_text("\n".join([*lines, f"{key}: {value}", "held_out: 8"]))
    line = refused(capsys, "train", str(path))
    assert line.startswith(f"{path}:{len(lines) + 1}: {key}: "), line
    assert says in line
    # The same from the command line, which is in no file.
    path.write_text("\n".join(lines))
    line = refused(capsys, "train", str(path), f"{key}={value}")
    assert line.startswith(f"{key}: ") and says in line


GRID = """seeds: [0]
run:
  tasks: [bbc]
  arrivals: 40
policies:
  - random
  - policy: oasis
    run: {rank: 2}
"""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "seeds: [0]",
            "seeds: [0, 4294967296]",
            "1: seeds: got 4294967296, expected a list of integers from 0, less",
        ),
        ("seeds: [0]", "seeds: [-1]", "1: seeds: got -1"),
        ("seeds: [0]", 'out: "a\\0b"', "1: out: got 'a\\x00b'"),
        ("seeds: [0]", "out: 3", "1: out: got 3"),
        ("seeds: [0]", 'imports: ["a\\0b.py"]', "1: imports: got 'a\\x00b.py'"),
        ("seeds: [0]", 'base: "a\\0b"', "1: base: got 'a\\x00b'"),
        (
            "seeds: [0]",
            "seeds: [0]\nseeds: [1]",
            "2: seeds: the key is there twice, in lines 1 and",
        ),
        ("arrivals: 40", "device: cuda:99", "4: run.device: got 'cuda:99'"),
        ("arrivals: 40", "dtype: int8", "4: run.dtype: got 'int8'"),
        ("arrivals: 40", "learning_rate: .inf", "4: run.learning_rate: got inf"),
        ("arrivals: 40", "model: ./absent", "4: run.model: no folder ./absent"),
        ("- random", '- {policy: random, label: "a\\0b"}', "6: policies[0].label: got 'a\\x00b'"),
        ("rank: 2", "rank: 0", "8: policies[1].run.rank: got 0"),
        ("rank: 2", "learning_rate: 99", "8: policies[1].run.learning_rate: got 99,"),
        ("rank: 2", "device: cuda:99", "8: policies[1].run.device: got 'cuda:99'"),
        ("rank: 2", "rank: 2, rank: 2", "8: rank: the key is there twice"),
        ("- random", "- {policy: random, seeds: [4294967296]}", "6: policies[0].seeds: got 42949"),
    ],
)
def test_compare_names_file_line_and_setting(nothing_happens, capsys, before, after, says):
    assert before in GRID
    path = nothing_happens / "grid.yaml"
    path.write_text(GRID.replace(before, after))
    assert refused(capsys, "compare", str(path)).startswith(f"{path}:{says}")


def test_compare_from_python_makes_no_folder_either(nothing_happens, monkeypatch):
    grid = Grid(policies=["random"], run={"tasks": ["bbc"], "device": "cuda:99"})
    monkeypatch.undo()
    monkeypatch.chdir(nothing_happens / "here")
    with pytest.raises(ValueError, match="^run.device: got 'cuda:99'"):
        compare(grid)
    assert os.listdir() == []


def test_what_the_base_has_is_found_there(nothing_happens, capsys):
    base = nothing_happens / "base.yaml"
    base.write_text("run:\n  tasks: [bbc]\n  learning_rate: .nan\n")
    path = nothing_happens / "grid.yaml"
    path.write_text("base: base.yaml\nrun:\n  arrivals: 40\npolicies: [random]\n")
    line = refused(capsys, "compare", str(path))
    assert line.startswith(f"{base}:3: run.learning_rate: got nan")


@pytest.mark.parametrize("command", ["train", "compare"])
def test_files_that_are_no_settings(nothing_happens, capsys, command):
    path = nothing_happens / "x.yaml"
    bomb = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))]
    for text, says in [
        ("\n".join(bomb), "more than 100,000 values"),
        (
            "name: a\nratio: 0.25\nratio: 0.5\n",
            "3: ratio: the key is there twice, in lines 2 and 3",
        ),
        ("[" * 2000, "1: more than 64 levels"),
        ("run: {rank: 1\n", "2: expected ',' or '}'"),
    ]:
        path.write_text(text)
        line = refused(capsys, command, str(path))
        assert line.startswith(f"{path}:") and says in line


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = RunConfig(out="~/runs", model="~/m", lora_layers=1, cache_frozen=True,
                       cache_folder="~/c")  # fmt: skip
    assert (config.out, config.model, config.cache_folder) == (
        *("/home/me/runs", "/home/me/m", "/home/me/c"),
    )
    assert str(config.directory) == "/home/me/runs/run"
    grid = Grid(out="~/grid", policies=["random"])
    assert str(grid.cells()[0].directory) == "/home/me/grid/runs/random-0.25-s0"


def test_the_home_folder_of_imports(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text("")
    (tmp_path / "grid.yaml").write_text("policies: [random]\nimports: [~/own.py]\n")
    assert Grid.load(tmp_path / "grid.yaml").imports == [str(tmp_path / "own.py")]


def test_the_grids_of_the_repository_are_settings():
    folder = os.path.join(os.path.dirname(__file__), *[os.pardir] * 2, "bench", "streams")
    names = [name for name in os.listdir(folder) if re.fullmatch(r"\w+\.yaml", name)]
    assert len(names) >= 5
    for name in names:
        Grid.load(os.path.join(folder, name))
