"""The doctor tells the truth, and its self-check notices a wrong answer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oasis
from oasis import _core, doctor, reference

ROOT = Path(__file__).resolve().parents[2]


def test_report_says_what_is_there():
    found = doctor.report()
    assert found["versions"]["oasis"].startswith(oasis.__version__)
    assert found["versions"]["torch"] == torch.__version__
    assert found["build"] == _core.build_info()
    assert found["threads"]["torch"] == torch.get_num_threads()
    for device in ("cpu", "cuda"):
        assert set(found["backends"][device]) == {
            "grad_gram",
            "head_gram",
            "siren",
            "oris",
            "memory",
        }
        assert all(backend and why for backend, why in found["backends"][device].values())
    assert found["self_check"]["ok"], found["self_check"]["detail"]
    assert 0 < found["self_check"]["seconds"] < 10


def test_main_prints_every_part(capsys):
    assert doctor.main() == 0
    text = capsys.readouterr().out
    for part in ("versions", "compiled in", "devices", "threads", "environment", "self-check"):
        assert part in text
    assert "backends on cpu" in text and "backends on cuda" in text
    assert "passed" in text and "FAILED" not in text
    assert all(name in text for name in doctor.ENVIRONMENT)


def test_the_known_answer_is_that_of_the_reference():
    gram = torch.tensor([[4.0, 2, 0], [2, 2, 1], [0, 1, 1]], dtype=torch.float64)
    result = reference.siren(gram)
    assert result.order.tolist() == [0, 2, 1]
    assert result.adjusted.tolist() == pytest.approx([4.0, 0.83617434, 1.0], abs=1e-8)


@pytest.mark.parametrize("wrong", ["adjusted", "order", "nan"])
def test_a_wrong_answer_fails(monkeypatch, capsys, wrong):
    siren = oasis.siren

    def broken(*args, **kwargs):
        result = siren(*args, **kwargs)
        if wrong == "order":
            result.picks.copy_(torch.tensor([0, 1, 2]))
        else:
            result.adjusted[1] = torch.nan if wrong == "nan" else result.adjusted[1] + 1e-6
        return result

    monkeypatch.setattr(oasis, "siren", broken)
    assert doctor.main() == 1
    assert "FAILED" in capsys.readouterr().out


def test_missing_packages_are_named(monkeypatch, capsys):
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "peft" else version(name))
    assert doctor.main() == 0
    text = capsys.readouterr().out
    assert re.search(r"peft +not installed", text)
    assert "need peft: pip install 'oasis-select[train]'" in text


def test_a_mistyped_instruction_set_is_noted(monkeypatch):
    monkeypatch.setenv("OASIS_ISA", "avx513")
    assert any("'avx513', expected one of" in note for note in doctor.report()["notes"])


def test_every_variable_that_is_read_is_listed():
    """`os.environ` in Python, `getenv` in C++: all of them are in the doctor's table."""
    read = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["'](\w+)["']""")
    sources = [p for top in ("oasis", "csrc", "kernels") for p in (ROOT / top).rglob("*")]
    names = set()
    for path in sources:
        if path.suffix in {".py", ".cpp", ".h", ".cu", ".cuh"}:
            names |= set(read.findall(path.read_text("utf-8")))
    assert "OASIS_ISA" in names  # the search finds something
    assert names <= set(doctor.ENVIRONMENT)


def test_runs_without_the_extra():
    """A process in which nothing of the extra can be imported."""
    code = (
        "import sys\n"
        "from oasis.cli import main\n"
        "from oasis.extra import modules\n"
        "sys.modules.update(dict.fromkeys(modules()))\n"
        "sys.exit(main(['doctor']))\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout
