"""Fast adaptation: a finished run is fine-tuned on rows of another task, from its own weights."""

from __future__ import annotations

import pytest
import tiny_folder
import torch
from peft import PeftModel
from safetensors.torch import load_file

from oasis import cli
from oasis.lab import model as models
from oasis.lab.adapt import curve
from oasis.lab.config import RunConfig
from oasis.lab.data.own.load import load
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.evaluate import held_out_loss
from oasis.lab.record.log import read_events

FAST = ("device=cpu", "dtype=float32", "batch_size=8", "-q")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, a finished run, and rows that it was not trained on."""
    folder = tmp_path_factory.mktemp("adapt")
    model = tiny_folder.save(folder / "model")
    old = tiny_folder.write_rows(folder / "old.jsonl", tiny_folder.parities(48))
    new = tiny_folder.numbers(56)
    tiny_folder.write_rows(folder / "new.jsonl", new[:48])
    tiny_folder.write_rows(folder / "test.jsonl", new[48:])
    own = ("--model", model, "--data", old, f"out={folder}", "name=old", "rank=2", "--no-report")
    assert cli.main(["train", *own, "learning_rate=3e-2", "policy=full", *FAST]) == 0
    return folder


def adapt(place, out, *more):
    command = ["adapt", str(place / "old"), "--data", str(place / "new.jsonl"), "--out", str(out)]
    return cli.main([*command, f"data.test={place / 'test.jsonl'}", *FAST, *more])


def loss_of(place, adapter):
    """Of the new task's held-out rows, with the weights of an adapter folder."""
    model = models.load_model(str(place / "model"), torch.device("cpu"), torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    tokenizer = models.load_tokenizer(str(place / "model"))
    paths = {"path": [str(place / "new.jsonl")], "test": [str(place / "test.jsonl")]}
    task = load(DataSettings(**paths), tokenizer, 1024).tasks[0]
    return held_out_loss(model, tokenizer, task.test)


def test_it_starts_from_the_runs_weights_and_from_none_and_says_how_fast_it_learns(
    place, tmp_path, capsys
):
    assert adapt(place, tmp_path / "out") == 0
    shown = capsys.readouterr().out.splitlines()
    curves = {}
    for name, adapter in (("base", None), ("old", place / "old" / "adapter")):
        config = RunConfig.load(tmp_path / "out" / name / "config.yaml")
        assert config.policy == "full" and config.learning_rate == 3e-2 and config.rank == 2
        curves[name] = curve(config)
        losses = curves[name].loss["new"]
        assert curves[name].steps == [0, 1, 2, 4, 6]
        assert losses[0] == pytest.approx(loss_of(place, adapter), rel=1e-5)
        after = tmp_path / "out" / name / "adapter"
        assert losses[-1] == pytest.approx(loss_of(place, after), rel=1e-5)
        assert losses[-1] < losses[0]
    base, old = curves["base"].loss["new"], curves["old"].loss["new"]
    assert len({round(value, 4) for value in (*base, *old)}) == 10
    assert shown[0] == "new: held-out loss after steps" and shown[1].split() == list("01246")
    assert shown[2].split() == ["base", *(f"{value:.3f}" for value in base)]
    assert shown[3].split() == ["old", *(f"{value:.3f}" for value in old)]
    kinds = [e["type"] for e in read_events(tmp_path / "out" / "old" / "events.jsonl")]
    assert kinds.count("probe") == 3 and kinds[-1] == "end"


def test_several_tasks_have_a_table_each(place, tmp_path, capsys):
    other = tiny_folder.write_rows(tmp_path / "other.jsonl", tiny_folder.numbers(40))
    command = ["adapt", str(place / "old"), "--data", str(place / "new.jsonl"), "--data", other]
    assert cli.main([*command, "--out", str(tmp_path / "out"), "--no-base", *FAST]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "after steps" in line]
    assert [line.split(":")[0] for line in shown] == ["new", "other"]


def test_weights_are_taken_as_they_are(place):
    base = models.load_model(str(place / "model"), torch.device("cpu"), torch.float32)
    lora = models.attach_lora(base, rank=2, alpha=None, layers=None, seed=5)
    models.load_lora(lora, place / "old" / "adapter")
    saved = load_file(place / "old" / "adapter" / "adapter_model.safetensors")
    ours = {n.replace(".default", ""): p for n, p in lora.named_parameters() if "lora_" in n}
    assert set(saved) == set(ours) and all(ours[name].equal(saved[name]) for name in saved)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["rank=4"], "start: .*has another rank (2, here 4)"),
        (["alpha=5"], "start: .*has another alpha (4, here 5)"),
        (["name=other"], "name: the command decides"),
        (["ranks=4"], "ranks: unknown setting"),
    ],
)
def test_other_lora_is_refused(place, tmp_path, capsys, changes, says):
    assert adapt(place, tmp_path / "out", "--no-base", *changes) == 2
    start, _, end = says.rpartition(".*")
    text = capsys.readouterr().err
    assert start in text and end in text and "Traceback" not in text


def test_what_is_no_finished_run_is_refused(place, tmp_path, capsys):
    rows = str(place / "new.jsonl")
    for run, says in (
        (str(tmp_path), "config.yaml: cannot be read"),
        ("rank=2", "runs: got none, expected the folder of a finished run"),
    ):
        assert cli.main(["adapt", run, "--data", rows, "-q"]) == 2
        assert says in capsys.readouterr().err
    model = tiny_folder.save(tmp_path / "other")
    train = ["train", "--data", rows, f"out={tmp_path}", *FAST, "--model"]
    assert cli.main([*train, model, f"start={place / 'old'}"]) == 2
    assert "start: the run " in capsys.readouterr().err
    assert cli.main([*train, str(place / "model"), f"start={tmp_path}"]) == 2
    assert "has no adapter; expected a finished run" in capsys.readouterr().err
