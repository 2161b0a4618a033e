"""A whole run on a tiny model: the record on disk, resuming, and the demo's table."""

from __future__ import annotations

import io
import math
import re

import pytest
import yaml
from rich.console import Console
from runs_on_disk import evaluation, step
from tiny_text import NAMES, workspace

from oasis import policies
from oasis.lab.config import RunConfig
from oasis.lab.demo import demo, load_config
from oasis.lab.record.accuracy import standard_error
from oasis.lab.record.log import EventLog, read_events
from oasis.lab.run import run
from oasis.train.batch.columns import ITEM
from oasis.train.batch.subbatch import right_padded


def config(out, **changes) -> RunConfig:
    settings = {
        "out": str(out),
        "tasks": NAMES,
        "arrivals": [40, 24],
        "held_out": 8,
        "batch_size": 8,
        "model": "tiny",
        "rank": 2,
        "device": "cpu",
        "dtype": "float32",
        "logging_steps": 3,
    }
    return RunConfig.from_mapping({**settings, **changes})


def events_of(directory, *, times: bool = True) -> list[dict]:
    events = read_events(directory / "events.jsonl")
    return events if times else [{**e, "seconds": 0, "score_seconds": 0} for e in events]


@pytest.mark.parametrize("policy", ["oasis", "random", "full"])
def test_the_run_directory(tmp_path, policy):
    settings = config(tmp_path, name=policy, policy=policy, forward_batches=2)
    result = run(settings, progress=False, workspace=workspace(settings))
    directory = tmp_path / policy
    assert RunConfig.load(directory / "config.yaml") == settings
    assert (directory / "adapter" / "adapter_model.safetensors").exists()
    events = events_of(directory)
    start, *middle, end = events
    assert start["type"] == "start" and start["boundaries"] == [5, 8] and start["tasks"] == NAMES
    assert start["ratio"] == (1.0 if policy == "full" else 0.25)
    kinds = [event["type"] for event in middle]
    assert kinds.count("selection") == kinds.count("step") == 8
    evaluations = [event for event in middle if event["type"] == "evaluation"]
    assert [(e["step"], e["after_task"]) for e in evaluations] == [(0, -1), (5, 0), (8, 1)]
    assert [set(e["accuracy"]) for e in evaluations] == [set(NAMES), {NAMES[0]}, set(NAMES)]
    selections = [event for event in middle if event["type"] == "selection"]
    assert [len(event["selected"]) for event in selections] == [8] * 8
    assert {task for event in selections[:5] for task in event["task"]} == {0}
    selected = sum(sum(event["selected"]) for event in selections)
    assert (end["candidates"], end["selected"]) == (64, selected)
    assert selected == {"random": 16, "full": 64}.get(policy, selected)
    last = evaluations[-1]["accuracy"]
    assert end["a_last"] == result.a_last == pytest.approx(sum(last.values()) / 2)
    first = evaluations[1]["accuracy"][NAMES[0]]
    assert end["a_avg"] == result.a_avg == pytest.approx((first + end["a_last"]) / 2)
    assert end["forward_seconds"] > 0 and result.ratio == selected / 64
    assert result.finished and result.seconds >= result.score_seconds + result.train_seconds


@pytest.mark.parametrize("options", [{}, {"remember": 8}])
def test_stopped_and_resumed_selects_the_same_samples(tmp_path, options):
    whole = config(tmp_path, name="whole", save_steps=2, policy_options=options)
    run(whole, progress=False, workspace=workspace(whole))
    parts = config(tmp_path, name="parts", stop_after=3, policy_options=options)
    stopped = run(parts, progress=False, workspace=workspace(parts))
    assert not stopped.finished and stopped.a_last is None and stopped.steps == 3
    # What came after the checkpoint is repeated, not recorded twice.
    with (tmp_path / "parts" / "events.jsonl").open("a") as file:
        file.write('{"type": "step", "step": 4, "seconds": 0.0}\n')
    # A checkpoint that a kill left without its last file does not count.
    (tmp_path / "parts" / "checkpoint-9").mkdir()
    again = config(tmp_path, name="parts", resume=True, policy_options=options)
    resumed = run(again, progress=False, workspace=workspace(again))
    assert resumed.finished
    one, two = (events_of(tmp_path / name, times=False) for name in ("whole", "parts"))
    strip = ("train_seconds", "evaluation_seconds", "forward_seconds")
    assert [e["type"] for e in one] == [e["type"] for e in two]
    for mine, theirs in zip(one, two, strict=True):
        for key in mine.keys() - set(strip):
            if isinstance(mine[key], float) and key == "loss":
                assert mine[key] == pytest.approx(theirs[key], rel=1e-5)
            else:
                assert mine[key] == theirs[key], (key, mine, theirs)


def test_resuming_another_run_is_refused(tmp_path):
    first = config(tmp_path, stop_after=2)
    run(first, progress=False, workspace=workspace(first))
    other = config(tmp_path, ratio=0.5, resume=True)
    with pytest.raises(ValueError, match="ratio: got 0.5, but the run to be resumed .* has 0.25"):
        run(other, progress=False, workspace=workspace(other))


def test_nothing_to_resume_starts_anew_and_a_new_run_replaces_an_old_one(tmp_path):
    settings = config(tmp_path, resume=True, stop_after=2)
    assert run(settings, progress=False, workspace=workspace(settings)).steps == 2
    anew = config(tmp_path, policy="random")
    run(anew, progress=False, workspace=workspace(anew))
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert [e["type"] for e in events_of(tmp_path / "run")].count("start") == 1


def test_runs_share_a_workspace_and_leave_it_clean(tmp_path):
    settings = config(tmp_path, lora_layers=1, cache_frozen=True)
    shared = workspace(settings)
    list(shared.warm())
    first = run(settings, progress=False, workspace=shared)
    second = run(settings.replace(name="again"), progress=False, workspace=shared)
    assert first.history == second.history and first.zero_shot == second.zero_shot
    apart = settings.replace(name="apart", cache_frozen=False)
    plain = run(apart, progress=False, workspace=workspace(apart))
    one, two = (events_of(tmp_path / name) for name in ("run", "apart"))
    chosen = [[e["selected"] for e in events if e["type"] == "selection"] for events in (one, two)]
    assert chosen[0] == chosen[1] and plain.history == first.history
    with pytest.raises(ValueError, match="workspace: has data_seed=0, but the run has 1"):
        run(settings.replace(data_seed=1), progress=False, workspace=shared)


def test_warmed_texts_are_not_computed_again(tmp_path):
    shared = workspace(config(tmp_path, lora_layers=1, cache_frozen=True))
    list(shared.warm())
    computed = []
    shared.prefix.lower.register_forward_hook(lambda *args: computed.append(1))
    items = shared.items
    for start in range(0, len(items), 5):  # with other neighbours, hence other padding
        batch = shared.collator(items[start : start + 5])
        shared.prefix.attention_mask = batch["attention_mask"]
        shared.prefix(batch["input_ids"])
        shared.prefix(right_padded(batch)["input_ids"])
    assert not computed


def test_hidden_states_on_disk_serve_later_runs_and_change_nothing(tmp_path):
    folder = tmp_path / "hidden"
    plain = config(tmp_path, name="memory", lora_layers=1, cache_frozen=True)
    in_memory = run(plain, progress=False, workspace=workspace(plain))
    kept = plain.replace(name="disk", cache_folder=str(folder))
    first = run(kept, progress=False, workspace=workspace(kept))
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    again = kept.replace(name="again")
    second = run(again, progress=False, workspace=workspace(again))
    assert sorted(folder.rglob("*.safetensors")) == files  # nothing was computed again
    assert in_memory.history == first.history == second.history
    chosen = [
        [e["selected"] for e in events_of(tmp_path / name) if e["type"] == "selection"]
        for name in ("memory", "disk", "again")
    ]
    assert chosen[0] == chosen[1] == chosen[2]


def test_another_order_of_arrival_by_another_seed(tmp_path):
    settings = config(tmp_path, name="one")
    shared = workspace(settings)
    one, two = (
        [item[ITEM] for batch in shared.stream(settings.replace(seed=seed)).batches()
         for item in batch]
        for seed in (0, 1)
    )  # fmt: skip
    again = [item[ITEM] for batch in shared.stream(settings).batches() for item in batch]
    assert one == again != two and len(set(one)) <= 64 and max(one) < 64


def test_a_first_task_without_a_batch_has_its_boundary(tmp_path):
    settings = config(tmp_path, arrivals=[4, 20])
    result = run(settings, progress=False, workspace=workspace(settings))
    assert [set(accuracy) for accuracy in result.history] == [{NAMES[0]}, set(NAMES)]


def test_bad_settings_leave_an_existing_run_alone(tmp_path):
    settings = config(tmp_path, arrivals=[2, 2])
    with pytest.raises(ValueError, match="give no batch"):
        run(settings, progress=False, workspace=workspace(settings))
    with pytest.raises(ValueError, match="policy: got 'nothing'"):
        config(tmp_path, policy="nothing")
    bad = config(tmp_path, policy_options={"beta": 2})
    with pytest.raises(ValueError, match="beta: got 2"):
        run(bad, progress=False)
    assert not (tmp_path / "run").exists()


def test_the_record_has_no_nan_and_can_be_cut(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write(evaluation(0, {"a": math.nan, "b": 1.0}))
    log.write(step(1) | {"loss": math.inf})
    offset = log.offset
    log.write(step(2))
    log.close()
    first, second, third = read_events(path)
    assert first == evaluation(0, {"a": None, "b": 1.0}) and second["loss"] is None
    assert third == step(2)
    log = EventLog(path, offset)
    log.write(step(3))
    log.close()
    assert read_events(path)[2:] == [step(3)] and len(read_events(path, offset)) == 2


def test_demo_prints_the_table_and_writes_the_report(tmp_path):
    settings = config(tmp_path, forward_batches=1, lora_layers=2, cache_frozen=True)
    screen = Console(file=io.StringIO(), width=120)
    results = demo(config=settings, fill=True, workspace=workspace(settings), console=screen)
    text = screen.file.getvalue()
    assert [result.policy for result in results.values()] == ["oasis", "oasis", "random", "full"]
    assert results["fill"].steps * 4 == results["oasis"].steps  # batches of as many samples
    assert re.search(r"mode=fill.* took \d\.\d\d x the time", " ".join(text.split()))
    assert "16/64" in text and "64/64" in text and "standard error" in text
    assert "untrained" in text and "x a plain forward" in text
    assert (tmp_path / "report.html").exists()
    assert yaml.safe_load((tmp_path / "full" / "config.yaml").read_text())["ratio"] == 1.0


def test_demo_runs_full_batches_on_request_alone(tmp_path):
    screen = Console(file=io.StringIO(), width=120)
    settings = config(tmp_path)
    results = demo(config=settings, workspace=workspace(settings), console=screen)
    assert [result.policy for result in results.values()] == ["oasis", "random", "full"]
    assert "mode=fill" not in screen.file.getvalue()


def test_the_packaged_settings_are_valid():
    assert len(load_config().tasks) == 3
    assert load_config(quick=True).held_out < load_config().held_out
    error = standard_error({"a": 0.5, "b": 0.5}, {"a": 100, "b": 100})
    assert error == pytest.approx(0.05 / math.sqrt(2))


def test_a_policy_that_asks_is_given_the_length(tmp_path, monkeypatch):
    settings = config(tmp_path, policy="random")
    made = policies.create("random", 0.25, 0)
    made.total_batches = None
    monkeypatch.setattr(policies, "create", lambda *args, **kwargs: made)
    run(settings, progress=False, workspace=workspace(settings))
    assert made.total_batches == 8


def test_more_layers_than_the_model_has_are_refused_before_the_folder_is_there(tmp_path):
    settings = config(tmp_path, lora_layers=99)
    with pytest.raises(ValueError, match="lora_layers: got 99, expected null or 1 to 3"):
        run(settings, progress=False, workspace=workspace(settings))
    assert not settings.directory.exists()
