"""The command line: what it calls, what it prints, how it ends. Training itself is replaced."""

import errno
import importlib.util
import re
import subprocess
import sys
import types
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from runs_on_disk import made_up, start, write_events

import oasis
from oasis import cli, doctor
from oasis.extra import modules, packages
from oasis.lab.config import RunConfig
from oasis.lab.data.assets import AssetError
from oasis.lab.record.lock import Busy

CONFIG = "name: mine\nout: somewhere\ntasks: [bbc]\narrivals: 40\nratio: 0.25\n"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


def replace_module(monkeypatch, name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def runs(monkeypatch):
    """Configs that reached `oasis.lab.run.run`, which returns numbers made up."""
    seen = []
    numbers = {"a_last": 0.612, "a_avg": 0.7, "selected": 10, "candidates": 40, "ratio": 0.25}
    numbers |= {"zero_shot": {"bbc": 0.2}, "history": [{"bbc": 0.612}]}
    numbers |= {"losses": [{"own": 2.0}, {"own": 1.0}]}
    result = types.SimpleNamespace(finished=True, seconds=3.2, trained=10, **numbers)

    def run(config, progress):
        seen.append(config)
        return result

    replace_module(monkeypatch, "oasis.lab.run", run=run)
    monkeypatch.setattr("oasis.lab.report.write", lambda folders, out: out)
    return seen


def failing_run(monkeypatch, error):
    def run(*_, **__):
        raise error

    replace_module(monkeypatch, "oasis.lab.run", run=run)


def error_line(capsys):
    """What a user reads who got something wrong: one line, no traceback."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("oasis: ")).lstrip("\n")
    assert text.startswith("error: ") and text.count("\n") == 1
    return text


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"oasis {oasis.__version__}\n"


def test_help_names_every_command(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("train", "demo", "report", "doctor"))


def test_train_passes_the_config_on(config, runs, capsys):
    assert cli.main(["train", config]) == 0
    assert (runs[0].name, runs[0].ratio, runs[0].resume) == ("mine", 0.25, False)
    text = capsys.readouterr().out
    assert "bbc: 20.0 % before training, 61.2 % at the end" in text
    assert "loss 2.000 (perplexity 7.389) before training, loss 1.000 (perplexity 2.718)" in text
    assert "A_last 61.2 %" in text and "10 of 40 samples (25.00 %)" in text
    assert "wrote somewhere/mine/report.html" in text


def test_train_takes_rows_of_ones_own_without_a_file(tmp_path, runs, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    arguments = ["--data", str(rows), "--model", "someone/model", "--no-report", "ratio=0.5"]
    assert cli.main(["train", *arguments]) == 0
    assert cli.main(["train", "ratio=0.5", "seed=1", *arguments[:5]]) == 0
    assert runs[0].data.path == [str(rows)] and runs[0].tasks == []
    assert [(config.ratio, config.seed, config.epochs) for config in runs] == [
        *((0.5, 0, 1), (0.5, 1, 1))
    ]
    assert runs[0].model == "someone/model" and "wrote" not in capsys.readouterr().out
    assert cli.main(["train", "--data", str(tmp_path / "none.jsonl"), "--model", "x"]) == 2
    assert "data: no file" in error_line(capsys)


def test_options_come_before_the_file(config, tmp_path, runs):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    (tmp_path / "own.yaml").write_text(f"data: {{path: {tmp_path}/a.jsonl, chat: true}}\nrank: 2\n")
    assert cli.main(["train", str(tmp_path / "own.yaml"), "--data", str(rows)]) == 0
    assert runs[0].data.path == [str(rows)] and runs[0].rank == 2


def test_train_overrides_and_resume(config, runs):
    assert cli.main(["train", config, "ratio=0.125", "name=other", "--resume"]) == 0
    assert (runs[0].name, runs[0].ratio, runs[0].resume) == ("other", 0.125, True)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("ratoi=0.1", "'ratio'"),  # the nearest setting
        ("ratio=2", "ratio: got 2"),
        ("seed=abc", "seed: got 'abc'"),
        ("ratio", "expected key=value"),
    ],
)
def test_wrong_settings_are_one_line(config, runs, capsys, override, says):
    assert cli.main(["train", config, override]) == 2
    assert says in error_line(capsys)
    assert not runs


@pytest.mark.parametrize(
    ("text", "says"), [(None, "No such file"), ("tasks: [", "tasks"), ("- 1\n", "expected")]
)
def test_wrong_files_are_one_line(tmp_path, runs, capsys, text, says):
    path = tmp_path / "absent.yaml"
    if text is not None:
        path.write_text(text)
    assert cli.main(["train", str(path)]) == 2
    line = error_line(capsys)
    assert says in line or "absent.yaml" in line
    assert not runs


@pytest.mark.parametrize(
    "error", [AssetError("could not download x==1: [no network]"), OSError("[no network]")]
)
def test_what_the_user_can_put_right_is_one_line(config, monkeypatch, capsys, error):
    failing_run(monkeypatch, error)
    assert cli.main(["train", config]) == 2
    assert "[no network]" in error_line(capsys)  # brackets are text, not markup


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "mine/config.yaml"), 1),
        (OSError(errno.EIO, "Input/output error", "mine/config.yaml"), 1),
        (Busy(errno.EBUSY, "another run is going on there", "mine"), 2),
    ],
)
def test_a_disk_that_gives_out_has_failed_and_a_busy_folder_is_for_the_user(
    config, monkeypatch, capsys, error, status
):
    failing_run(monkeypatch, error)
    assert cli.main(["train", config]) == status
    assert f"{error.filename}: {error.strerror}" in error_line(capsys)


def test_an_earlier_run_is_not_replaced_unasked(config, tmp_path, monkeypatch, runs, capsys):
    out = tmp_path / "old"
    (out / "run").mkdir(parents=True)
    (out / "run" / "events.jsonl").write_text("")
    assert cli.main(["train", config, f"out={out}", "name=run"]) == 2
    assert "--overwrite" in error_line(capsys)
    assert not runs
    assert cli.main(["train", config, f"out={out}", "name=run", "--overwrite"]) == 0
    assert len(runs) == 1


@pytest.mark.parametrize("options", ["{betta: 0.5}", "{beta: high}"])
def test_what_the_policy_does_not_take_is_one_line(config, runs, capsys, options):
    assert cli.main(["train", config, f"policy_options={options}"]) == 2
    assert "bet" in error_line(capsys)
    assert not runs


def test_an_argument_that_oasis_refuses_is_one_line(config, monkeypatch, capsys):
    replace_module(monkeypatch, "oasis.lab.run", run=lambda *_, **__: oasis.threshold(7))
    assert cli.main(["train", config]) == 2
    assert "7" in error_line(capsys)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("elsewhere", "raise ValueError('inside training')"),
        ("oasis.lab.fake", "raise TypeError('inside training')"),
    ],
)
def test_a_fault_keeps_its_traceback(config, monkeypatch, module, statement):
    members = {"__name__": module}
    exec(f"def run(*_, **__):\n    {statement}\n", members)
    replace_module(monkeypatch, "oasis.lab.run", run=members["run"])
    with pytest.raises((ValueError, TypeError), match="inside training"):
        cli.main(["train", config])


@pytest.mark.parametrize(("save_steps", "hint"), [(0, False), (5, True)])
def test_interrupt(config, monkeypatch, capsys, save_steps, hint):
    failing_run(monkeypatch, KeyboardInterrupt())
    assert cli.main(["train", config, f"save_steps={save_steps}"]) == 130
    assert ("--resume" in error_line(capsys)) == hint


def test_interrupted_anywhere_it_is_one_line(config, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("oasis.lab.preflight.check", interrupted)
    assert cli.main(["train", config]) == 130
    assert error_line(capsys) == "error: interrupted\n"


def test_init_writes_a_file_that_is_the_defaults(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init"]) == 0 and "oasis train oasis.yaml" in capsys.readouterr().out
    text = (tmp_path / "oasis.yaml").read_text()
    assert RunConfig.load("oasis.yaml") == RunConfig()
    # With all of them open they are the defaults still, each behind a comment.
    text_open = re.sub(r"(?m)^# ([a-z_]+: )", r"\1", text)
    (tmp_path / "open.yaml").write_text(text_open)
    assert RunConfig.load("open.yaml") == RunConfig()
    keys = [line.partition(":")[0] for line in text_open.splitlines() if line and line[0] != "#"]
    assert keys and set(keys) == set(RunConfig.model_fields)
    assert all("# " in text_open.split(f"\n{key}:")[0].splitlines()[-1] for key in keys)
    # Rows of one's own bring their own defaults.
    (tmp_path / "rows.jsonl").write_text("")
    own = ["data=rows.jsonl"]
    assert RunConfig.load("oasis.yaml", own) == RunConfig.put_together({}, own, {})
    assert cli.main(["init"]) == 2
    assert "oasis.yaml is there already" in error_line(capsys)
    assert (tmp_path / "oasis.yaml").read_text() == text


def test_demo_passes_its_options_on(tmp_path, monkeypatch):
    seen = []
    replace_module(monkeypatch, "oasis.lab.demo", demo=lambda **options: seen.append(options))
    assert cli.main(["demo"]) == cli.main(["demo", "--quick", "--out", str(tmp_path)]) == 0
    assert [options["quick"] for options in seen] == [False, True]
    assert seen[1]["out"] == tmp_path
    assert cli.main(["demo", "--fill"]) == 0
    assert [options["fill"] for options in seen] == [False, False, True]


def test_report(tmp_path, capsys):
    write_events(tmp_path / "runs" / "oasis", [start("oasis")])
    out = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert out.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("text", ["", "arri", "- 1", "a: [", "a: 1\na: 2"])
def test_report_leaves_out_a_run_whose_settings_cannot_be_read(text, tmp_path, capsys, caplog):
    for seed in (0, 1):
        folder = made_up(tmp_path / f"random{seed}", "random", seed=seed, batches=2)
        (folder / "config.yaml").write_text("arrivals: 16\n")
    (folder / "config.yaml").write_text(text)
    out = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "--out", str(out)]) == 0
    assert f"left out: {folder / 'config.yaml'}" in caplog.text and out.exists()
    capsys.readouterr()
    assert cli.main(["report", str(folder), "--out", str(out)]) == 2
    assert "none of them can be read" in error_line(capsys)


def test_report_of_a_damaged_run_names_it_and_draws_the_others(tmp_path, capsys, caplog):
    good = write_events(tmp_path / "good", [start("oasis")]) / "events.jsonl"
    torn = write_events(tmp_path / "torn", [start("full")]) / "events.jsonl"
    torn.write_bytes(torn.read_bytes() + b'{"type": "selection", "selected": 3}\n\xff\n')
    out = tmp_path / "page.html"
    assert cli.main(["report", *map(str, (good.parent, torn.parent)), "--out", str(out)]) == 0
    assert f"{torn}: 2 lines cannot be read" in caplog.text and str(good) not in caplog.text


def test_report_without_runs_is_one_line(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "absent")]) == 2
    assert "does not exist" in error_line(capsys)


def test_report_where_it_cannot_write(tmp_path, capsys):
    write_events(tmp_path / "oasis", [start("oasis")])
    assert cli.main(["report", str(tmp_path / "oasis"), "-o", str(tmp_path)]) == 2
    assert f"{tmp_path}: Is a directory" in error_line(capsys)


@pytest.mark.parametrize("status", [0, 1])
def test_doctor_status(monkeypatch, status):
    monkeypatch.setattr(doctor, "main", lambda: status)
    assert cli.main(["doctor"]) == status


def test_unknown_option_is_a_usage_error(capsys):
    assert cli.main(["report", "--no-such-option"]) == 2
    assert "no-such-option" in capsys.readouterr().err


@pytest.fixture
def no_typer(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "oasis.commands", raising=False)
    # An attribute left on the package would be found instead of the module.
    monkeypatch.delattr(oasis, "commands", raising=False)


def test_without_the_extra(no_typer, monkeypatch, capsys):
    assert cli.main(["train", "x.yaml"]) == 2
    text = capsys.readouterr().err
    assert "pip install 'oasis-select[train]'" in text and text.count("\n") == 1
    assert cli.main(["--version"]) == cli.main(["--help"]) == 0
    assert "oasis train, select" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "main", lambda: 0)
    assert cli.main(["doctor"]) == 0


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_half_an_extra(tmp_path, monkeypatch, capsys, module):
    write_events(tmp_path / "oasis", [start("oasis")])
    for name in [name for name in sys.modules if name.startswith("oasis.lab.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(oasis, "report", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "pip install 'oasis-select[train]'" in error_line(capsys)


def test_another_missing_module_is_not_blamed_on_the_extra(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "oasis.lab.run", None)
    with pytest.raises(ModuleNotFoundError, match=r"oasis\.lab\.run"):
        cli.main(["train", config])


def test_every_module_of_the_extra_is_known():
    asked = [Requirement(line) for line in metadata.requires("oasis-select") or []]
    train = [r.name for r in asked if r.marker and r.marker.evaluate({"extra": "train"})]
    assert set(packages()) == {name.lower() for name in train} > {"transformers", "typer"}
    assert modules() > {"transformers", "typer", "yaml", "sklearn", "markupsafe"}
    assert all(importlib.util.find_spec(name) for name in modules())


def test_python_m_oasis():
    done = subprocess.run(
        [sys.executable, "-m", "oasis", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"oasis {oasis.__version__}\n" and done.returncode == 0
