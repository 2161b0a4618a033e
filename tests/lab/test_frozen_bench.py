"""bench/frozen on a tiny model: its pool of texts, and trainings on it."""

from __future__ import annotations

import csv

import pytest
import tiny_text
import torch
import yaml

from bench.frozen import __main__ as bench
from bench.frozen import cheaper
from bench.frozen import texts as texts_module
from bench.frozen.texts import Pool, Texts, pool
from bench.frozen.training import Stream, accuracy
from oasis.lab.compare import Grid
from oasis.lab.data import tasks
from oasis.lab.data.tasks import Source

CHOICES = {"colours": ("red", "green", "blue"), "animals": ("cat", "dog"), "others": ("one",)}
ARRIVALS = 8


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of two tasks and off-task rows on a tiny model, in a folder of its own."""
    tiny_text.model().save_pretrained(tmp_path / "model")
    tiny_text.tokenizer().save_pretrained(tmp_path / "model")
    for name, choices in CHOICES.items():
        pairs = [(e.prompt, e.answer) for e in tiny_text.task(name, choices, 80).train]
        source = Source("{}", choices, lambda pairs=pairs: (pairs, []))
        monkeypatch.setitem(tasks.SOURCES, name, source)
    monkeypatch.setattr(texts_module, "HELD_OUT", 6)
    monkeypatch.setattr(texts_module, "SHORTLIST", 4)
    monkeypatch.setattr(texts_module, "choose_dtype", lambda *_: torch.float32)
    monkeypatch.chdir(tmp_path)
    run = {"model": str(tmp_path / "model"), "tasks": ["colours", "animals"], "arrivals": ARRIVALS}
    run |= {"off_task": "others", "off_task_share": 0.25, "batch_size": 4, "max_length": 32}
    run |= {"iterations_per_sample": 0.25, "repeats": 0.25, "held_out": 6}
    entries = ["oasis", "random", {"policy": "full"}]
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"run": run, "ratios": [0.5], "policies": entries}), "utf-8")
    return path


@torch.no_grad()
def test_a_pool_holds_what_the_model_hands_to_its_head(grid, monkeypatch):
    config = Grid.load(grid, []).cells()[0].config
    made = pool(config, grid.with_name("pool.pt"))
    assert [len(texts.answer) for texts in made.train] == [12, 12, 6]  # 1.5 times what is drawn
    assert [len(texts.answer) for texts in made.test] == [6, 6]
    examples, choices = texts_module._examples(config)
    model, tokenizer = tiny_text.model(), tiny_text.tokenizer()
    for part, kept in (("train", made.train), ("test", made.test)):
        for index, texts in enumerate(kept):
            for row, example in enumerate(examples[part][index]):
                ids = torch.tensor([tokenizer(example.prompt)["input_ids"]])
                state = model.model(ids).last_hidden_state[0, -1]
                torch.testing.assert_close(texts.hidden[row], state, rtol=1e-5, atol=1e-5)
                assert choices[index][texts.answer[row]] == example.answer
            named = [tiny_text.WORDS.index(choice) for choice in choices[index]]
            torch.testing.assert_close(
                made.weight[made.choices[index]], model.lm_head.weight[named]
            )
    assert len(made.weight) == 6 + texts_module.SHORTLIST
    monkeypatch.setattr(texts_module, "_made", None)  # the second time it is read
    again = pool(config, grid.with_name("pool.pt"))
    assert torch.equal(again.train[1].hidden, made.train[1].hidden)


def test_trainings_are_run_once_and_told(grid, capsys):
    arguments = [str(grid), "seeds=2", "out=rows.csv"]
    bench.main(arguments)
    with grid.with_name("rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["seed"]) for row in rows] == [
        (label, seed) for seed in "01" for label in ("oasis", "random", "full")
    ]
    for row in rows:
        candidates, selected = int(row["candidates"]), int(row["selected"])
        assert candidates == 20  # 2 x 8 arrivals and a quarter off task, each once
        assert 0 <= float(row["macro"]) <= 100 and 0 <= float(row["micro"]) <= 100
        assert selected == candidates if row["label"] == "full" else 0 < selected < candidates
    assert "random" in capsys.readouterr().out
    bench.main(arguments)
    with grid.with_name("rows.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == rows


def test_cheaper_scores_are_of_as_many_selected_samples(grid, capsys):
    described = yaml.safe_load(grid.read_text("utf-8")) | {"policies": ["vanilla"]}
    described["run"]["iterations_per_sample"] = 1.0  # so that most texts return
    grid.write_text(yaml.safe_dump(described), "utf-8")
    cheaper.main([str(grid), "seeds=1", "out=rows.csv"])
    with grid.with_name("rows.csv").open(newline="") as file:
        rows = {row["label"].partition(", ")[2]: row for row in csv.DictReader(file)}
    assert list(rows) == list(cheaper.WAYS)
    candidates = {int(row["candidates"]) for row in rows.values()}
    assert candidates == {80}
    scored = [int(rows[f"rescored {share:g}"]["scored"]) for share in cheaper.SHARES]
    assert 80 == int(rows[cheaper.WHOLE]["scored"]) > scored[0] > scored[1] > scored[2] > 20
    selected = [int(row["selected"]) for row in rows.values()]
    assert max(selected) - min(selected) <= 4 and min(selected) >= 36  # half of 80
    whole = rows[cheaper.WHOLE]
    assert -1 <= float(whole["rank"]) <= 1
    lost = [float(whole[name]) for name in cheaper.LOST.values()]
    assert 0 <= lost[0] <= lost[1] <= lost[2] < 1 and lost[2] > 0
    assert f"saves {round(100 * (1 - scored[0] / 80))} %" in capsys.readouterr().out


def test_new_candidates_and_the_best_of_the_others_are_shown():
    last = {7: 1.0, 8: 3.0, 9: 2.0}
    assert cheaper.shown([8, 1, 7, 9], last, 0.5).tolist() == [True, True, False, True]
    assert cheaper.shown([8, 1, 7, 9], last, 0.3).tolist() == [True, True, False, False]


@pytest.mark.parametrize("wrong", ["seed=3", "pool", "run.arrivals=4"])
def test_unknown_options_are_refused(grid, wrong):
    with pytest.raises(SystemExit, match=f"got '{wrong}', expected .* seeds, out, pool"):
        bench.main([str(grid), wrong])


def test_accuracies_by_hand():
    """Two tasks of two answers; each state is a one-hot token, so the head says its own."""
    eye = torch.eye(4)
    arrived = [Texts(eye[:0], torch.tensor([0, 0, 0, 1])), Texts(eye[:0], torch.tensor([0, 1]))]
    test = [
        Texts(eye[[0, 1, 1, 1]], torch.tensor([0, 0, 1, 1])),  # half of 0 right, all of 1
        Texts(eye[[2, 2]], torch.tensor([0, 1])),  # all of 0 right, none of 1
    ]
    choices = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    made = Pool(arrived, test, choices, eye)
    macro, micro = accuracy(made, Stream([], test), lambda hidden: hidden)
    assert macro == 100 * (0.75 + 0.5) / 2
    assert micro == 100 * ((3 * 0.5 + 1) / 4 + 0.5) / 2
