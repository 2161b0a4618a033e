"""bench/device.sh, which is meant to need no second try on a GPU: its dry run on the CPU."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
HEADS = [f"T={t}, D=32, V={v} bfloat16" for v in (96, 112) for t in (32, 64)]
EXPECTED = [
    *(("grad_gram", f"N=16 x 4,000 {dtype}") for dtype in ("float32", "bfloat16")),
    *(("siren", case) for case in ("exact, N=4", "exact, N=6", "residual, N=8")),
    ("oris", "N=16"),
    *(("Gram to mask", f"{how}, N=16") for how in ("operators", "CUDA graph", "select(gram=...)")),
    ("forward", "2 layers, 16 x 8 positions"),
    *(("head_gram", shape) for shape in HEADS),
    *(("other heads", f"logits and cross-entropy, {shape}") for shape in HEADS),
    ("other heads", f"gradient per sample by autograd, then grad_gram, {HEADS[0]}"),
    *(("overhead", f"head_gram + select over the forward, {shape}") for shape in HEADS),
]
TRAINING = [
    ("training", f"LoRA, 2 layers of 32, 16 x 256 tokens, a step, {which}")
    for which in ("all", "25 % selected")
]
RIVALS = ("torch linear_cross_entropy", "liger-kernel", "cut-cross-entropy")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """(what was printed, the report)"""
    out = tmp_path_factory.mktemp("device")
    done = subprocess.run(
        [ROOT / "bench" / "device.sh", "--dry", out],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, (out / "device-CPU-dry-run.md").read_text()


def seconds(cell: str) -> float:
    number, unit = cell.split()
    return float(number) * UNITS[unit]


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()
             if line.startswith("|")]  # fmt: skip
    assert {len(row) for row in cells} == {8}
    found = {(row[0], row[1]): row[2:] for row in cells[2:]}
    assert len(found) == len(cells) - 2, "two rows of the same name"
    return found


def test_every_row_has_a_time_and_a_floor(dry):
    found = rows(dry[1])
    wanted = {
        *EXPECTED,
        *TRAINING,
        *(("other heads", f"{name}, {shape}") for name in RIVALS for shape in HEADS),
        *(("head_gram", f"{name}, {shape}") for name in ("folded", "float8") for shape in HEADS),
    }
    assert set(found) == wanted
    for key in EXPECTED:
        time, floor, share = found[key][:3]
        assert seconds(time) > 0 and seconds(floor) > 0, key
        assert math.isclose(
            float(share.removesuffix(" %")), 100 * seconds(floor) / seconds(time), abs_tol=0.6,
            rel_tol=0.02,
        ), key  # fmt: skip
    for key in TRAINING:
        assert seconds(found[key][0]) > 0 and found[key][1] == "-"
    for key in wanted - {*EXPECTED, *TRAINING}:
        assert (
            found[key][0] != "not run"
            or found[key][-1]
            in (
                "needs a GPU",
                "not importable here",
            )
            or (key[1].startswith("float8") and "float8" in found[key][-1])
        )
    for shape in HEADS:
        folded = found["head_gram", f"folded, {shape}"]
        assert seconds(folded[0]) > 0 and "cosines differ by at most" in folded[-1]


def test_the_report_says_what_it_rests_on(dry):
    printed, text = dry
    assert text in printed
    assert text.startswith("# CPU dry run\n") and "the times mean nothing" in text
    for rate in ("copy", "bfloat16 product", "float64 product", "a trivial operator"):
        assert re.search(rf"{rate} [\d.,]+(e[+-]\d+)? ", text), rate  # 9e-05 on a loaded machine
    for operator in ("grad_gram", "head_gram", "siren", "oris"):
        assert f"- {operator}: " in text


def test_the_checks_of_a_gpu_ran_on_cpu_tensors(dry):
    assert re.search(r"^\d{3} passed in", dry[0], re.MULTILINE)


def test_the_timed_head_gram_agrees_with_autograd(dry):
    case = f"gradient per sample by autograd, then grad_gram, {HEADS[0]}"
    note = rows(dry[1])["other heads", case][-1]
    # Gradients in bfloat16 are rounded to 2^-9; cosines of unrelated ones are near 0 or 1.
    assert float(note.rsplit(" ", 1)[1]) < 0.01, note


def test_overhead_is_over_the_whole_stack(dry):
    """The percentage in the note is scoring over 16 times the two layers that were timed."""
    found = rows(dry[1])
    layers = 16 * seconds(found["forward", "2 layers, 16 x 8 positions"][0])
    select = seconds(found["Gram to mask", "select(gram=...), N=16"][0])
    for shape in HEADS:
        time, *_, note = found["overhead", f"head_gram + select over the forward, {shape}"]
        scoring = seconds(found["head_gram", shape][0]) + select
        assert math.isclose(seconds(time), scoring, rel_tol=0.02)
        percent = float(re.match(r"\+([\d.]+) % of the layers", note)[1])
        assert math.isclose(percent, 100 * scoring / layers, rel_tol=0.03)


def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "bench.device"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "no GPU that torch can use" in done.stderr


@pytest.fixture
def device_main(monkeypatch):
    """`main` of bench.device, without the training; imported from the checkout."""
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.device import __main__ as module

    monkeypatch.setattr(module, "training", lambda bench: None)
    return module.main


def test_a_case_that_fails_costs_its_row_alone(monkeypatch, tmp_path, capsys, device_main):
    from bench.device import rivals

    def broken(*_):
        raise RuntimeError("planted | fault")

    monkeypatch.setattr(rivals, "plain", broken)
    assert device_main(["--dry", "--out", str(tmp_path)]) == 1
    found = rows((tmp_path / "device-CPU-dry-run.md").read_text())
    assert found["other heads", f"logits and cross-entropy, {HEADS[0]}"][0] == "not run"
    assert found["overhead", f"head_gram + select over the forward, {HEADS[0]}"][0] == "not run"
    assert seconds(found["head_gram", HEADS[3]][0]) > 0
    assert "planted / fault" in capsys.readouterr().err


def test_a_run_that_is_cut_off_leaves_its_rows(monkeypatch, tmp_path, device_main):
    from bench.device import rivals

    def pulled_plug(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(rivals, "autograd", pulled_plug)
    with pytest.raises(KeyboardInterrupt):
        device_main(["--dry", "--out", str(tmp_path)])
    found = rows((tmp_path / "device-CPU-dry-run.md").read_text())
    assert list(found)[: len(EXPECTED)][:10] == EXPECTED[:10]
    assert ("head_gram", HEADS[0]) in found and ("head_gram", HEADS[1]) not in found


def test_on_a_bare_box_it_builds_and_asks_for_a_gpu(tmp_path):
    """No network, and python3 is a virtual environment whose packages lie outside of it."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    seen = [path for path in sys.path if path.endswith("site-packages")]
    (folder,) = venv.glob("lib/python3*/site-packages")
    (folder / "seen.pth").write_text("\n".join(seen))
    before = sorted(folder.iterdir())
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "DEVICE_"))}
    done = subprocess.run(
        [ROOT / "bench" / "device.sh", tmp_path / "out"],
        env=keep
        | {
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "DEVICE_CUDA": "OFF",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("no GPU that torch can use was found"), (
        done.stderr
    )
    assert list((ROOT / "build/device/packages/oasis").glob("_core*"))
    assert sorted(folder.iterdir()) == before, "the environment was changed"
