"""`oasis doctor --time`: at which ratio selection pays on this machine."""

import pytest
import torch
from tiny_models import tiny_model
from typer.testing import CliRunner

from oasis.commands import app
from oasis.lab import pays
from oasis.lab.pays import Setup, Times

# A step takes 1 s and 1 s a row; scoring 4 s.
STEADY = Times(8, scoring=4.0, full=9.0, selected={1: 2.0, 4: 5.0, 8: 9.0})


def test_costs_are_those_of_scoring_and_a_smaller_step():
    assert STEADY.cost(0.5) == pytest.approx(1.0)
    assert STEADY.cost(0.25) == pytest.approx((4 + 3) / 9)  # between one row and four
    assert STEADY.cost(0.125) == pytest.approx((4 + 2) / 9)
    assert STEADY.cost(0.0625) == pytest.approx((4 + 1) / 9)  # a step on one row every other batch
    assert STEADY.pays_below() == pytest.approx(0.5)


def test_where_scoring_takes_as_long_as_training_it_never_pays():
    slow = Times(8, scoring=8.0, full=9.0, selected=STEADY.selected)
    assert slow.pays_below() is None
    text = "\n".join(pays.lines([slow]))
    assert "never" in text and "Selection does not pay here" in text
    assert "does not pay here" not in "\n".join(pays.lines([slow, STEADY]))
    assert "50 %" in pays.lines([STEADY])[1].split("ms")[-1]
    free = Times(8, scoring=0.0, full=9.0, selected={1: 1.0, 8: 8.0})  # trained with kept forwards
    assert free.pays_below() == 1.0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="labels: got 8, expected 1 to 7"):
        Setup(length=8, labels=8)
    with pytest.raises(ValueError, match="reuse_forward: got it without checkpointing"):
        Setup(reuse_forward=True)


@pytest.mark.parametrize("options", [[], ["--checkpointing", "--reuse-forward"], ["--rank", "0"]])
def test_the_doctor_times_a_model_in_a_folder(tmp_path, options):
    tiny_model(dtype=torch.float32).save_pretrained(tmp_path)
    sizes = ["--batch", "2", "--batch", "4", "--length", "8", "--labels", "2", "--seconds", "0"]
    where = ["--device", "cpu", "--dtype", "float32"]
    found = CliRunner().invoke(app, ["doctor", "--time", str(tmp_path), *sizes, *where, *options])
    assert found.exit_code == 0, found.output
    trained = "all weights" if "--rank" in options else "LoRA of rank 16"
    _, _, after = found.stdout.partition(f"on cpu, float32; {trained}")
    out = after.splitlines()
    assert [line.split()[0] for line in out[2:4]] == ["2", "4"]
    assert out[2].split().count("-") == 3  # of two rows half is one
    for line in out[2:4]:
        assert line.split()[-1] == "never" or line.endswith("%")


def test_the_doctor_says_what_is_wrong_in_one_line(tmp_path):
    found = CliRunner().invoke(app, ["doctor", "--time", str(tmp_path), "--length", "4"])
    assert found.exit_code == 2 and "labels: got 32, expected 1 to 3" in found.output
