"""Every program in examples/ runs, on a tiny model, and does what it says."""

import importlib.util
from pathlib import Path

import pytest
import tiny_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(model folder, rows file) of 48 rows."""
    folder = tmp_path_factory.mktemp("place")
    rows = tiny_folder.write_rows(folder / "rows.jsonl", tiny_folder.numbers(48))
    return tiny_folder.save(folder / "model"), rows


def test_own_loop(place):
    selected, candidates = example("own_loop").train(*place)
    assert candidates == 48 and 0 < selected <= 12


@pytest.mark.parametrize("name", ["trainer", "sft_trainer"])
def test_trainers(place, tmp_path, name):
    counts = example(name).train(*place, str(tmp_path / "out"))
    assert counts.candidates == (43 if name == "trainer" else 48)  # one holds a tenth out
    assert 0 < counts.selected <= counts.candidates / 4


def test_own_policy(place, tmp_path):
    done = example("own_policy").keep(*place, tmp_path / "kept.jsonl")
    assert (done.kept, done.candidates) == (12, 48)


def test_select_file(place, tmp_path):
    done, reasons = example("select_file").keep(*place, tmp_path / "kept.jsonl")
    assert reasons["kept"] == done.kept > 0 and sum(reasons.values()) == 48


def test_every_example_is_run_and_named():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"own_loop", "trainer", "sft_trainer", "own_policy", "select_file"}
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"[{name}.py]({name}.py)" in page for name in names)
