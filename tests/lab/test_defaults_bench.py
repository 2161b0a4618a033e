"""bench/readings.py, bench/probe.py: what the defaults are chosen by must be right."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
import yaml
from comparing import assert_relative
from tiny_text import NAMES, workspace

import oasis
from bench import held_out_error, probe, readings, redundancy
from bench.__main__ import main
from bench.probe import ProbingTrainer, plant, restoring
from bench.real_training import parse, trainer_of
from bench.recording import Recording, record
from oasis import policies
from oasis.lab.config import RunConfig
from oasis.lab.record.log import read_events
from oasis.lab.run import run

SETTINGS = {
    "tasks": NAMES,
    "arrivals": [40, 24],
    "held_out": 4,
    "batch_size": 8,
    "model": "tiny",
    "rank": 2,
    "learning_rate": 0.01,
    "device": "cpu",
    "dtype": "float32",
    "logging_steps": 0,
}


def config(out, **changes) -> RunConfig:
    return RunConfig.from_mapping({"out": str(out), **SETTINGS, **changes})


# ---- readings ----


def test_a_replayed_selector_selects_what_the_live_run_selected(tmp_path):
    settings = config(tmp_path, policy="oasis", policy_options={"beta": 0.5}, seed=3)
    recording = record(settings, workspace(settings), "oasis")
    recording.save(tmp_path / "gram.npz")
    loaded = Recording.load(tmp_path / "gram.npz")
    assert loaded.policy == "oasis" and len(loaded) == len(recording) == 8
    for name in ("grams", "valid", "masks"):
        pairs = zip(getattr(loaded, name), getattr(recording, name), strict=True)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    selector = oasis.Selector(settings.ratio, seed=3, beta=0.5, nonfinite="skip")
    for gram, valid, mask in zip(loaded.grams, loaded.valid, loaded.masks, strict=True):
        assert torch.equal(selector.select(gram=gram, valid=valid).mask, mask)
    replayed = readings.replay(loaded, settings.ratio, seed=3, beta=0.5)
    assert replayed.counts.tolist() == [int(mask.sum()) for mask in loaded.masks]
    # ... and recording changes nothing about a run.
    run(settings, progress=False, workspace=workspace(settings))
    events = read_events(settings.directory / "events.jsonl")
    live = [event["selected"] for event in events if event["type"] == "selection"]
    assert live == [mask.tolist() for mask in recording.masks]
    assert any(map(any, live)) and not all(map(all, live))


def test_the_recording_of_random_trains_by_random(tmp_path):
    settings = config(tmp_path, policy="oasis", policy_options={"beta": 0.5})
    recording = record(settings, workspace(settings), "random")
    assert [int(mask.sum()) for mask in recording.masks] == [2] * 8
    assert all(gram.diagonal().min() > 0 for gram in recording.grams)


def synthetic(batches=60, n=16, seed=0) -> Recording:
    """Gradients of equal length along axes of their own, I log-normal: SIREN leaves I alone."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(batches, n, generator=g, dtype=torch.float64).exp()
    everything = [torch.ones(n, dtype=torch.bool)] * batches
    return Recording("random", [row.diag() for row in scores], everything, everything)


def test_z_and_counts_of_a_replay(tmp_path):
    recording = synthetic()
    recording.valid[5] = recording.valid[5].clone()
    recording.valid[5][:3] = False
    scores = torch.stack([gram.diagonal() for gram in recording.grams])
    got = readings.replay(recording, 0.25, readings.FIXED, siren="none", beta=0.9)
    assert got.candidates.tolist() == [16] * 5 + [13] + [16] * 54
    assert got.ratio == got.counts.sum() / (60 * 16 - 3)
    mean, within = scores[0].mean(), scores[0].var(unbiased=False)
    for t in range(1, 5):
        assert_relative(got.z[got.batch == t], (scores[t] - mean) / within.sqrt(), 1e-9)
        within = 0.9 * ((scores[t] - mean) ** 2).mean() + 0.1 * within
        mean = 0.9 * scores[t].mean() + 0.1 * mean
    assert (got.batch == 5).sum() == 13


def test_normality_of_what_is_normal_and_what_is_not():
    z = torch.randn(20_000, generator=torch.Generator().manual_seed(1)).double().numpy()
    close = readings.normality(z)
    assert abs(close["mean"]) < 0.03 and abs(close["sd"] - 1) < 0.02
    assert close["ks"] < 0.015 and 0.001 < close["beyond"] < 0.005
    far = readings.normality(np.array([5.0, 5.0, -5.0, 0.0]))
    assert far["beyond"] == 0.75 and far["mean"] == 1.25 and far["ks"] >= 0.49


def test_the_tables_of_readings(monkeypatch):
    monkeypatch.setattr(readings, "BETAS", (0.9,))
    monkeypatch.setattr(readings, "RATIOS", (0.0625, 0.25))
    recording = synthetic(batches=100)
    rows = readings.readings(recording)
    assert len(rows) == len(readings.RULES) * 4 * 1 * 2
    of = {(r["rule"], r["scale"], r["warmup"]): r for r in rows}
    # Orthogonal gradients: nothing is redundant, whatever the rule.
    assert of["none", "within", 1]["ks"] == pytest.approx(of["exact", "within", 1]["ks"], abs=1e-9)
    # sqrt(v) is too small a deviation by sqrt(N), docs/method.md 3.
    assert of["none", "batch", 1]["sd"] == pytest.approx(4 * of["none", "sample", 1]["sd"], rel=0.1)
    # Only the first batches know of the warm-up.
    assert of["none", "sample", 1]["early"] != of["none", "sample", 320]["early"]
    for row in rows:
        assert abs(row["steered 0.25"] - 0.25) <= 0.03
    steered = [abs(row["steered 0.0625"] - 0.0625) for row in rows]
    assert np.mean(steered) < np.mean([abs(row["fixed 0.0625"] - 0.0625) for row in rows])
    counted = {
        (r["draw"], r["temperature"], r["ratio"], r["threshold"]): r
        for r in readings.draws(recording)
    }
    spread = {d: counted[d, 1.0, 0.25, "fixed"]["count_sd"] for d in oasis.names.DRAWS}
    assert spread["top"] == spread["systematic"] < spread["bernoulli"] < spread["shared"]
    # Only `top` takes the most informative whatever the temperature; the others when cold.
    best = {(d, t): counted[d, t, 0.25, "steered"]["captured"] for d in oasis.names.DRAWS
            for t in readings.TEMPERATURES}  # fmt: skip
    assert best["top", 1.0] > 0.95 > 0.8 > best["bernoulli", 1.0]
    assert best["bernoulli", 1.0] < best["bernoulli", 0.5] < best["bernoulli", 0.25]
    text = readings.tables(recording, rows, list(counted.values()))
    assert "| none | within | 0.9 |" in text and "| shared | 1.0 | 25 % | steered |" in text


# ---- probing ----


def snapshot(model, optimizer):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return weights, copy.deepcopy(optimizer.state_dict()["state"])


def same(one, two) -> bool:
    return str(one[1].keys()) == str(two[1].keys()) and all(
        torch.equal(a, b)
        for a, b in [
            *((one[0][name], two[0][name]) for name in one[0]),
            *((one[1][p][name], two[1][p][name]) for p in one[1] for name in one[1][p]),
        ]
    )


@pytest.mark.parametrize("earlier", [0, 2])
def test_restoring_is_bit_for_bit(earlier):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(), torch.nn.Linear(4, 3))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def step():
        model(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()

    for _ in range(earlier):
        step()
    before, kept = snapshot(model, optimizer), model[0].weight.grad
    grad, random_state = None if kept is None else kept.clone(), torch.get_rng_state()
    with pytest.raises(KeyError, match="inside"), restoring(model, optimizer):
        assert model[0].weight.grad is None
        step()
        step()
        assert not same(snapshot(model, optimizer), before)
        raise KeyError("inside")
    assert same(snapshot(model, optimizer), before)
    assert model[0].weight.grad is kept and (kept is None or torch.equal(kept, grad))
    assert torch.equal(torch.get_rng_state(), random_state)


def weights_after(settings, kind=None, **arguments):
    policy = policies.create("random", settings.ratio, settings.seed)
    kinds = () if kind is None else (kind,)
    with trainer_of(settings, workspace(settings), policy, *kinds, **arguments) as trainer:
        trainer.train()
        state = trainer.model.state_dict()
        return {k: v.clone() for k, v in state.items() if "lora" in k}, trainer


def test_probing_does_not_change_the_training(tmp_path):
    settings = config(tmp_path)
    plain, _ = weights_after(settings)
    probed, trainer = weights_after(settings, ProbingTrainer, phases={0: 0, 3: 1, 4: 1, 7: 2})
    assert all(torch.equal(plain[name], probed[name]) for name in plain)
    probes = trainer.probes()
    assert probes.phase.tolist() == [0] * 3 + [1] * 6 + [2] * 3
    assert probes.kind.tolist() == [0, 1, 2] * 4
    assert probes.gram.shape == (12, 8, 8) and probes.after.shape == probes.drift.shape == (
        12,
        2,
        8,
    )
    for p in range(12):
        raw = probes.gram[p].diagonal()
        if probes.kind[p] == 1:
            assert sorted(raw[probes.picked[p]]) == sorted(np.sort(raw)[-4:])
        assert probes.twins[p].sum() == (2 if probes.kind[p] == 2 else 0)
        assert not probes.twins[p][probes.picked[p]].any()
        assert not np.array_equal(probes.after[p, 0], raw)
        assert not np.array_equal(probes.after[p, 0], probes.after[p, 1])
    # Before its first step Adam has no momentum to move by.
    assert np.array_equal(probes.drift[0, 1], probes.gram[0].diagonal())
    assert not np.array_equal(probes.drift[3, 0], probes.gram[3].diagonal())
    # Three steps on H teach H.
    inside = np.take_along_axis(probes.after[:, 1], probes.picked, 1)
    raw = np.take_along_axis(np.diagonal(probes.gram, axis1=1, axis2=2), probes.picked, 1)
    assert np.median(inside / raw) < 1
    probes.save(tmp_path / "probes.npz")
    again = probe.Probes.load(tmp_path / "probes.npz")
    assert all(np.array_equal(getattr(again, n), getattr(probes, n)) for n in vars(probes))


def test_the_steps_of_a_probe_are_those_of_the_trainer(tmp_path):
    settings = config(tmp_path, max_grad_norm=0.01)  # clipping that matters
    wanted = []

    class Compare(ProbingTrainer):
        """One probe step on the batch's own selection, against the training step that follows."""

        def _select(self, batch):
            chosen = super()._select(batch)
            optimizer = self.optimizer.optimizer
            with restoring(self.model, optimizer):
                self._step_on(chosen, optimizer)
                wanted.append([p.detach().clone() for p in self.model.parameters()])
            return chosen

        def training_step(self, model, *args, **kwargs):
            if len(wanted) > 1:
                now = list(self.model.parameters())
                assert all(torch.equal(a, b) for a, b in zip(wanted[-2], now, strict=True))
            return super().training_step(model, *args, **kwargs)

    _, trainer = weights_after(settings, Compare, phases={})
    assert len(wanted) == 8
    with pytest.raises(ValueError, match="no batch was measured"):
        trainer.probes()


def test_planted_rows_are_shorter_copies():
    batch = {
        "input_ids": torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 9], [0, 8, 8, 8, 8]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]),
        "labels": torch.tensor([[-100] * 4 + [7], [-100] * 4 + [9], [-100] * 4 + [8]]),
    }
    before = {name: value.clone() for name, value in batch.items()}
    got = plant(batch, {0: 1})
    assert all(torch.equal(batch[name], before[name]) for name in batch)
    assert got["input_ids"].tolist() == [[0, 2, 3, 4, 9], [1, 2, 3, 4, 9], [0, 8, 8, 8, 8]]
    assert got["attention_mask"][0].tolist() == [0, 1, 1, 1, 1]
    assert got["labels"][0].tolist() == [-100] * 4 + [9]


# ---- the commands ----


def test_commands(tmp_path, monkeypatch, capsys):
    settings = {"out": str(tmp_path), "name": "tiny", **SETTINGS}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    monkeypatch.setattr(readings, "Workspace", workspace)
    monkeypatch.setattr(redundancy, "Workspace", workspace)
    monkeypatch.setattr(readings, "BETAS", (0.9,))
    monkeypatch.setattr(readings, "RATIOS", (0.25,))
    main(["redundancy", str(path), "probes=1", "seed=2"])
    out = capsys.readouterr().out
    assert "Measured batches: 1 early, 1 middle, 1 late." in out and "| residual 0.03 |" in out
    first = json.loads((tmp_path / "tiny" / "redundancy.json").read_text())
    assert first["config"]["seed"] == 2
    main(["redundancy", str(path), f"load={tmp_path / 'tiny' / 'probes.npz'}"])
    again = json.loads((tmp_path / "tiny" / "redundancy.json").read_text())
    assert again["summary"] == first["summary"]

    main(["readings", str(path)])
    first = json.loads((tmp_path / "tiny" / "readings.json").read_text())
    assert {"random", "oasis"} <= first.keys()
    assert "trained by oasis, 8 batches" in capsys.readouterr().out
    main(["readings", str(path), f"load={tmp_path / 'tiny' / 'gram-oasis.npz'}"])
    again = json.loads((tmp_path / "tiny" / "readings.json").read_text())
    assert "random" not in again and again["oasis"] == first["oasis"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([], SystemExit, ["FILE.yaml", "probes", "load"]),
        (["probes=many"], ValueError, ["probes", "many", "int"]),
        (["prob=3"], ValueError, ["prob"]),
    ],
)
def test_bad_arguments(tmp_path, arguments, error, words):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
    with pytest.raises(error) as caught:
        parse([str(path), *arguments] if arguments else [], redundancy.Options)
    for word in words:
        assert word in str(caught.value)


def test_batches_too_small_to_probe_are_refused(tmp_path):
    settings = config(tmp_path, batch_size=6)
    with pytest.raises(ValueError, match="batch_size: got 6, expected more than 6"):
        redundancy.measure(settings, workspace(settings), probes=1)
    with pytest.raises(ValueError, match="probes: got 0"):
        redundancy.measure(settings, workspace(settings), probes=0)


def test_the_standard_error_of_macro_accuracy():
    mean, variance = held_out_error.macro([(0.5, 5), (1.0, 9)])
    assert mean == 0.75 and variance == pytest.approx(0.5 * 0.5 / 4 / 4)
    # Against draws: two answers, 40 and 10 texts, right with probabilities 0.7 and 0.2.
    rng = np.random.default_rng(0)
    hits = rng.binomial([40, 10], [0.7, 0.2], size=(20_000, 2)) / [40, 10]
    estimates = [held_out_error.macro([(a, 40), (b, 10)])[1] for a, b in hits]
    assert np.mean(estimates) == pytest.approx(hits.mean(axis=1).var(), rel=0.03)
