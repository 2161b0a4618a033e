"""The settings' model: said once, so that messages, help and page agree; paths; what passes on."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from oasis import cli
from oasis.lab.compare.config import Entry, Grid
from oasis.lab.config import RunConfig, difference
from oasis.lab.settings import Scope, Settings, WrongSetting, in_grid, names, setting
from oasis.lab.settings.errors import takes
from oasis.lab.settings.kinds import Number, PathText, Positive, Seed, one_of
from oasis.lab.settings.reference import sections, text
from oasis.lab.settings_page import page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


class Inner(Settings):
    """Inner."""

    size: Positive = setting(3, "A size.")


class Example(Settings):
    """Example: one of each kind."""

    seed: Seed | None = setting(0, "A seed.", Scope.FREE)
    above: Annotated[Number, Field(gt=0)] = setting(1.0, "Above.", in_grid="set `seeds`")
    half: Annotated[Number, Field(ge=0, lt=1)] = setting(0.5, "Half.")
    word: Annotated[str, one_of("a", "b")] = setting("a", "Word.")
    parts: list[Inner] = setting([], "Parts.")
    inner: Inner = setting(Inner(), "A mapping inside, as a setting to come may be.")
    folder: PathText = setting("x", "Folder.")


def test_the_page_is_what_the_code_makes():
    made = page()
    assert PAGE.read_text("utf-8") == made, "python -m oasis.lab.settings_page > docs/settings.md"
    for model in (RunConfig, Grid, Entry):
        for name, field in model.model_fields.items():
            assert made.count(f"| `{name}` |") >= 1 and field.description, name


@pytest.mark.parametrize(("command", "model"), [("train", RunConfig), ("compare", Grid)])
def test_the_command_lists_every_setting(capsys, command, model):
    assert cli.main([command, "--help-settings"]) == 0
    said = capsys.readouterr().out
    for name in model.model_fields:
        assert re.search(f"^  {name}: ", said, re.M), name
    assert "](" not in said and max(map(len, said.splitlines())) <= 100


def test_what_a_setting_takes_is_what_its_error_expects():
    said = {line.name: line.takes for _, lines in sections(Example) for line in lines}
    assert said["seed"] == "an integer from 0, less than 2^32, or null"
    assert said["above"] == "a number, more than 0" and said["half"] == "a number in [0, 1)"
    assert said["word"] == "one of a, b"
    wrong = {"seed": -1, "above": 0, "half": 1.0, "word": "c"}
    for name, value in wrong.items():
        with pytest.raises(WrongSetting) as caught:
            Example(**{name: value})
        assert str(caught.value) == f"{name}: got {value!r}, expected {said[name]}"
        assert not isinstance(caught.value, TypeError)
    for name, value in {"seed": "x", "half": True, "word": 3}.items():
        with pytest.raises(TypeError, match=rf"^{name}: got .* \({type(value).__name__}\), expect"):
            Example(**{name: value})


def test_a_part_is_named_by_where_it_is():
    for wrong, says in [
        ({"parts": [{}, {"size": 0}]}, "parts[1].size: got 0, expected an integer from 1"),
        ({"parts": [{"sise": 1}]}, "parts[0].sise: unknown setting; the nearest is 'size'"),
        ({"inner": {"size": None}}, "inner.size: got None (NoneType), expected an integer"),
        ({"inner": {"zzz": 1}}, "inner.zzz: unknown setting"),
        ({"inner": 3}, "inner: got 3"),
    ]:
        with pytest.raises(WrongSetting) as caught:
            Example(**wrong)
        assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert Example(parts=[{"size": 2}], inner={"size": 4}).inner.size == 4


def test_an_unknown_key_is_named_before_a_wrong_value_and_only_what_is_near_suggested():
    with pytest.raises(WrongSetting, match=r"^zzz: unknown setting$"):
        Example(seed=-1, zzz=1)
    with pytest.raises(WrongSetting, match="^1: unknown setting"):
        Example.from_mapping({1: 2})


def test_numbers_as_yaml_and_people_write_them():
    assert RunConfig(learning_rate="5e-4").learning_rate == 5e-4
    assert type(RunConfig(ratio=1).ratio) is float
    for value in (math.nan, math.inf, 10**400):
        with pytest.raises(ValueError, match="^max_grad_norm: got "):
            RunConfig(max_grad_norm=value)


def test_paths_expand_and_a_variable_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("MODELS", "/models")
    monkeypatch.delenv("ABSENT", raising=False)
    config = RunConfig(out="${HOME}/runs", model="$MODELS/a$5", cache_frozen=True, lora_layers=1,
                       cache_folder="~/${MODELS}")  # fmt: skip
    assert (config.out, config.model) == ("/home/me/runs", "/models/a$5")
    assert config.cache_folder == "/home/me//models"
    assert Grid(out="${HOME}/g", policies=["random"]).out == "/home/me/g"
    path = tmp_path / "run.yaml"
    path.write_text("name: a\nout: ${ABSENT}/runs\n")
    with pytest.raises(ValueError) as caught:
        RunConfig.load(path)
    said = f"{path}:2: out: got '${{ABSENT}}/runs', but the environment has no variable ABSENT"
    assert str(caught.value) == said


def test_scopes_come_from_the_settings():
    assert names(Example, Scope.FREE) == {"seed"} and names(Example, Scope.SHARED) == set()
    assert in_grid(Example) == {"above": "set `seeds`"}
    assert names(RunConfig, Scope.NAME) == {"name", "out", "label"}
    assert names(RunConfig, Scope.NAME) < names(RunConfig, Scope.FREE)
    assert names(RunConfig, Scope.PER_TASK) == {"tasks", "arrivals"}
    a = RunConfig()
    assert difference(a.replace(save_steps=3, device="cpu"), a.model_dump()) is None
    assert difference(a.replace(rank=3), a.model_dump()) == ("rank", 3, 16)
    assert difference(a, {"training": {"optim": "sgd"}}) == ("training", {}, {"optim": "sgd"})


def test_settings_do_not_change_once_checked():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().ratio = 2
    one, other = RunConfig(), RunConfig()
    one.tasks.append("more")  # a default is each one's own
    assert other.tasks == RunConfig().tasks != one.tasks


def test_the_reference_has_the_parts_of_a_run():
    titles = [title.partition(":")[0] for title, _ in sections(RunConfig)]
    choosing = ["Selection", "Scoring"]
    assert titles == ["Run folder", "Stream", *choosing, "Model", "Training", "Evaluation"]
    said = " ".join(text(RunConfig).split())
    assert takes(RunConfig.model_fields["training"]) in said and "Takes true or false." in said


def test_settings_come_without_transformers():
    """Which takes seconds to import, of which `--help-settings` and `init` have no need."""
    script = (
        "import sys; import oasis.lab.config, oasis.lab.preflight, oasis.lab.settings.reference; "
        "import oasis.commands; "
        "print(*{'transformers', 'accelerate', 'peft', 'datasets', 'pandas'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
