"""How the command line behaves: completion, the first line, carriage returns, Ctrl-C, hints."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import tiny_folder

from oasis import cli
from oasis.lab.config import RunConfig
from oasis.lab.settings.errors import nearest


@pytest.fixture
def rows(tmp_path):
    return tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(40))


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [("oasis tr", 1, ["train"]), ("oasis select --re", 2, ["--report"])],
)
def test_words_are_completed(monkeypatch, capsys, words, at, expected):
    completing = {"_OASIS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    for name, value in completing.items():
        monkeypatch.setenv(name, value)
    assert cli.main([]) == 0
    found = capsys.readouterr().out.split()
    assert set(expected) <= set(found) and all(w.startswith(words.split()[-1]) for w in found)


def test_a_name_is_suggested_where_it_is_near_and_no_other(capsys):
    assert nearest("ratoi", RunConfig.model_fields) == "; the nearest is 'ratio'"
    assert nearest("zzzzz", RunConfig.model_fields) == ""
    assert cli.main(["trian"]) == 2 and "'train'" in capsys.readouterr().err
    assert cli.main(["zzzzz"]) == 2 and "mean" not in capsys.readouterr().err


def processor_seconds(process: subprocess.Popen) -> float:
    """What a process has used so far, whatever else the machine does."""
    with open(f"/proc/{process.pid}/stat") as file:
        user, system = file.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def processor_seconds_of_torch() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_first_line_comes_when_torch_is_there_and_ctrl_c_is_one_line(rows, tmp_path):
    model = tiny_folder.save(tmp_path / "model")
    command = [sys.executable, "-m", "oasis", "train", "--data", rows, "--model", model]
    torch_alone = processor_seconds_of_torch()  # before: in that time a tiny run is over
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # Shells have what they start in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr.readline() == "oasis: loading\n"
    # Two seconds on an idle machine, nearly all of them torch's; more where others use its cores.
    assert processor_seconds(process) < 1.5 * torch_alone
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    # A shell says 130 of both: ended so, or by the signal itself where Python finds it pending.
    assert process.returncode in (130, -signal.SIGINT)
    assert said.strip() == "error: interrupted"


@pytest.mark.parametrize("command", ["train", "select"])
def test_off_a_terminal_nothing_rewrites_its_line(rows, tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    model = tiny_folder.save(tmp_path / "model")
    capfd.readouterr()  # what saving the model has said
    own = {
        "train": [
            "batch_size=8",
            "rank=2",
            "logging_steps=4",
            "device=cpu",
            "dtype=float32",
            "--no-report",
        ],
        "select": ["--out", "kept.jsonl", "--device", "cpu", "--no-report"],
    }
    assert cli.main([command, "--data", rows, "--model", model, *own[command]]) == 0
    out, err = capfd.readouterr()
    assert "\r" not in out + err and ("trained on" in out or "kept" in out)
    assert "{" not in out, "a dict of the Trainer's"
    if command == "train":
        said = r"step 4/5: loss \d+\.\d+, selected \d+ of 32 \(\d+\.\d\d %\), scoring"
        assert re.search(said, out)


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")
def test_sigterm_leaves_no_temporary_files(rows, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    model = tiny_folder.save(tmp_path / "model")
    command = [sys.executable, "-m", "oasis", "train", "--data", rows, "--model", model]
    process = subprocess.Popen(
        [*command, "epochs=1000", "rank=2", "device=cpu", "save_steps=1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    saved = tmp_path / "runs" / "run" / "checkpoint-1"
    while not saved.exists() and process.poll() is None:
        time.sleep(0.05)
    assert list(temporary.glob("oasis-rows-*"))
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1].strip().splitlines()
    assert process.returncode == 143 and "Traceback" not in "".join(said)
    assert said[-1].startswith("error: interrupted; ") and "runs/run keeps what" in said[-1]
    assert not list(temporary.glob("oasis-rows-*"))
