"""Grids: what they expand to, who runs a cell, what a kill, a failure and a change leave behind."""

from __future__ import annotations

import errno
import io
import textwrap
from pathlib import Path

import pytest
import tiny_text
import yaml
from faults import Disk, Full, another_process_in, noticed
from rich.console import Console

from oasis.lab.compare import Grid, compare
from oasis.lab.compare.progress import Progress
from oasis.lab.compare.runner import Pool, Report, number_of_workers, plan
from oasis.lab.compare.state import FINISHED, NEW, PARTIAL, changed, damaged, state
from oasis.lab.compare.worker import DONE, FAILED, TAKEN, Runner, Stopped
from oasis.lab.record.log import read_events
from oasis.lab.run import run

# What a user's own module looks like; spawned workers run it too.
MODULE = """
    import os, sys
    sys.path.insert(0, {tests!r})
    import tiny_text
    from oasis import policies
    from oasis.lab.compare.worker import Stopped
    from oasis.lab.data import tasks

    def source(name, choices):
        pairs = [(e.prompt, e.answer) for e in tiny_text.task(name, choices, 400, 0).train]
        tasks.register(name, tasks.Source("{{}}", choices, lambda: (pairs, [])))

    source("grid_colours", ("red", "green", "blue"))
    source("grid_animals", ("cat", "dog"))

    class Fragile(policies.Random):
        name = "fragile"

        def __init__(self, ratio=0.25, seed=0, how="raise", flag=""):
            super().__init__(ratio, seed)
            self.how, self.flag, self.batches = how, flag, 0

        def observe(self, signals):
            self.batches += 1
            if self.batches == 5 and not (self.flag and os.path.exists(self.flag)):
                if self.flag:
                    open(self.flag, "w").close()
                if self.how == "die":
                    os._exit(3)
                raise Stopped if self.how == "stop" else ValueError("it broke")
            return super().observe(signals)

    policies.register("fragile", Fragile)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny model on disk, and a module with tasks and a policy that fails."""
    folder = tmp_path_factory.mktemp("grid")
    tiny_text.model().save_pretrained(folder / "model")
    tiny_text.tokenizer().save_pretrained(folder / "model")
    tests = str(Path(tiny_text.__file__).parent)
    (folder / "mine.py").write_text(textwrap.dedent(MODULE.format(tests=tests)))
    return folder


def settings(place, out, policies, **more) -> dict:
    run = {"model": str(place / "model"), "tasks": ["grid_colours", "grid_animals"]}
    run |= {"arrivals": [40, 24], "held_out": 8, "batch_size": 8, "rank": 2}
    run |= {"device": "cpu", "dtype": "float32", "logging_steps": 0, **more.pop("run", {})}
    common = {"name": "tiny", "out": str(out), "imports": [str(place / "mine.py")], "run": run}
    return {**common, "seeds": [0], "policies": policies, **more}


def make(place, out, policies, **more) -> Grid:
    return Grid(**settings(place, out, policies, **more))


def names(grid: Grid) -> list[str]:
    return [cell.name for cell in grid.cells()]


# ---- expansion ----


def test_one_whole_seed_comes_first(place, tmp_path):
    entry = {"label": "ORIS only", "policy": "oasis", "options": {"siren": "none"}}
    entry |= {"ratios": [0.25, 0.125], "seeds": [0, 2], "run": {"rank": 4}}
    grid = make(place, tmp_path, ["full", "random", entry], seeds=[0, 1], ratios=[0.25, 0.5])
    assert names(grid) == [
        *("full-1-s0", "random-0.25-s0", "random-0.5-s0"),
        *("ORIS_only-0.25-s0", "ORIS_only-0.125-s0"),
        *("full-1-s1", "random-0.25-s1", "random-0.5-s1"),
        *("ORIS_only-0.25-s2", "ORIS_only-0.125-s2"),
    ]
    config = grid.cells()[4].config
    assert (config.policy, config.label, config.ratio) == ("oasis", "ORIS only", 0.125)
    assert (config.policy_options, config.rank, config.seed) == ({"siren": "none"}, 4, 0)
    assert config.directory == tmp_path / "runs" / "ORIS_only-0.125-s0"
    assert [cell.label for cell in plan(grid, ["full"])] == ["full", "full"]
    with pytest.raises(ValueError, match="only: got 'nobody', expected one of full, random, ORIS"):
        plan(grid, ["nobody"])


def test_task_orders_permute_what_belongs_to_the_tasks(place, tmp_path):
    grid = make(place, tmp_path, ["random"], orders=[[0, 1], [1, 0]])
    first, second = (cell.config for cell in grid.cells())
    assert (first.name, second.name) == ("random-0.25-s0", "random-0.25-s0-o10")
    assert (first.tasks, first.arrivals) == (["grid_colours", "grid_animals"], [40, 24])
    assert (second.tasks, second.arrivals) == (["grid_animals", "grid_colours"], [24, 40])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": []}, "policies: got "),
        ({"policies": ["oassi"]}, r"policies\[0\].policy: got 'oassi', .*the nearest is 'oasis'"),
        ({"policies": [{"policy": "oasis", "lable": "x"}]}, "policies.0..lable.*'label'"),
        ({"policies": [{"policy": "oasis", "run": {"rnk": 1}}]}, "policies.0..run.rnk.*'rank'"),
        ({"policies": [{"policy": "oasis", "options": {"betta": 1}}]}, "options: .*betta"),
        ({"policies": ["random", "random"]}, "label 'random' is there more than once"),
        (
            {"policies": ["random", {"policy": "random", "label": "again"}]},
            "'random-0.25-s0' and 'again-0.25-s0' are the same run",
        ),
        (
            {"policies": [{"policy": "random", "label": "a b"},
                          {"policy": "oasis", "label": "a?b"}]},
            "two runs would be called 'a_b-0.25-s0'",
        ),
        ({"run": {"arivals": 3}}, "run.arivals: unknown setting; the nearest is 'arrivals'"),
        ({"run": {"seed": 3}}, "run.seed: not a setting of all runs; set `seeds`"),
        ({"seeds": [0, 0]}, "seeds: got .*each once"),
        ({"ratios": [1.5]}, "ratios: got .*0, 1"),
        ({"orders": [[0, 0]]}, "orders: got .*permutations of .0, 1."),
        ({"workers": 0}, "workers: got 0"),
        ({"name": "../../x"}, "name: got '../../x', expected a plain folder name"),
        ({"policies": [{"policy": "random", "label": "x" * 101}]}, "label 'x+': name: got 'x"),
        ({"imports": ["absent.py"]}, "imports: 'absent.py' does not exist"),
        ({"imports": ["no_such_module"]}, "imports: no module 'no_such_module'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(place, tmp_path, change, message):
    good = settings(place, tmp_path, ["random"])
    run = {**good["run"], **change.get("run", {})}
    with pytest.raises(ValueError, match=message):
        Grid(**{**good, **change, "run": run})


def test_rows_of_ones_own_have_no_orders():
    with pytest.raises(ValueError, match="orders: the tasks are those of data, in the order of"):
        Grid(policies=["random"], orders=[[0, 1]], run={"data": ["a.jsonl", "b.jsonl"]})


def test_the_file(place, tmp_path):
    values = settings(place, tmp_path, ["random"])
    del values["name"], values["out"]
    (tmp_path / "mine.py").write_text("MARK = 1\n")
    path = tmp_path / "wild.yaml"
    path.write_text(yaml.safe_dump({**values, "imports": [*values["imports"], "mine.py"]}))
    grid = Grid.load(path, ["run.rank=3", "seeds=[5]"])
    assert (grid.name, grid.out) == ("wild", "runs/wild")
    assert grid.imports[1] == str(tmp_path / "mine.py")  # whatever folder the command runs in
    assert (grid.cells()[0].config.rank, names(grid)) == (3, ["random-0.25-s5"])
    grid.save(tmp_path / "elsewhere" / "compare.yaml")
    assert Grid.load(tmp_path / "elsewhere" / "compare.yaml") == grid
    with pytest.raises(ValueError, match="polices: unknown setting; the nearest is 'policies'"):
        Grid.load(path, ["polices=3"])


def test_settings_on_disk_are_the_old_or_the_new(place, tmp_path, monkeypatch):
    grid = make(place, tmp_path, ["random"])
    for save in (grid.save, grid.cells()[0].config.save):
        path = tmp_path / "here" / f"{save.__self__.name}.yaml"
        path.parent.mkdir(exist_ok=True)
        save(path)
        disk = Disk(path.parent)
        with noticed(disk, monkeypatch):
            save(path)
        whole = path.read_bytes()
        assert disk.count >= 2
        for at in range(disk.count - 1):  # the last is the folder's own, when all is done
            path.write_text("old")
            with noticed(Full(path.parent, at), monkeypatch), pytest.raises(OSError) as caught:
                save(path)
            assert path.read_text() == "old" and caught.value.filename == str(path)
            assert list(path.parent.glob(".*")) == []
        save(path)
        assert path.read_bytes() == whole


def test_a_file_may_build_on_the_runs_of_another(place, tmp_path):
    values = settings(place, tmp_path, ["full"], seeds=[7])
    (tmp_path / "wild.yaml").write_text(yaml.safe_dump(values))
    here = {"base": "wild.yaml", "imports": values["imports"], "policies": ["random"]}
    path = tmp_path / "steep.yaml"
    path.write_text(yaml.safe_dump({**here, "run": {"rank": 3}}))
    grid = Grid.load(path, ["run.batch_size=4"])
    assert (grid.name, grid.seeds, [e.policy for e in grid.policies]) == (
        "steep",
        [0, 1, 2],
        ["random"],
    )
    assert grid.run == {**values["run"], "rank": 3, "batch_size": 4}
    for base, message in [(3, "base: got 3"), ("steep.yaml", "builds on wild.yaml itself")]:
        path.with_name("third.yaml").write_text(yaml.safe_dump({**here, "base": base}))
        with pytest.raises(ValueError, match=message):
            Grid.load(path.with_name("third.yaml"))
    path.write_text(yaml.safe_dump({**here, "base": "absent.yaml"}))
    with pytest.raises(FileNotFoundError):
        Grid.load(path)


# ---- single cells, in this process ----


def chosen(cell) -> list:
    events = read_events(cell.directory / "events.jsonl")
    return [event["selected"] for event in events if event["type"] == "selection"]


def test_a_killed_run_goes_on_and_a_finished_one_is_left_alone(place, tmp_path):
    options = {"how": "stop", "flag": str(tmp_path / "flag")}
    entry = {"policy": "fragile", "options": options}
    grid = make(place, tmp_path / "out", [entry, "random"], run={"save_steps": 2})
    cell, whole = grid.cells()
    runner = Runner()
    assert state(cell.config) == NEW
    with pytest.raises(Stopped):
        runner.run(cell.config)
    assert state(cell.config) == PARTIAL and len(chosen(cell)) == 4
    assert runner.run(cell.config).status == DONE and state(cell.config) == FINISHED
    assert runner.run(whole.config).status == DONE
    # It drew what random draws, without a break and nothing twice.
    assert chosen(cell) == chosen(whole) and len(chosen(cell)) == 8
    assert not list(cell.directory.glob("checkpoint-*"))
    assert not {"resume: true"} & set((cell.directory / "config.yaml").read_text().splitlines())
    end = read_events(cell.directory / "events.jsonl")[-1]
    assert end["train_flops"] > 0 == end["score_flops"] and 0 < end["density"] <= 1
    before = (cell.directory / "events.jsonl").stat().st_mtime_ns
    assert runner.run(cell.config).status == DONE
    assert (cell.directory / "events.jsonl").stat().st_mtime_ns == before


def test_changed_settings_are_refused_unless_overwritten(place, tmp_path):
    grid = make(place, tmp_path, ["random"], run={"save_steps": 0})
    (cell,) = grid.cells()
    cell.directory.mkdir(parents=True)
    earlier = cell.config.replace(logging_steps=3, label=None)
    earlier.save(cell.directory / "config.yaml")
    assert changed(cell.config) is None  # neither makes it another run
    text = (cell.directory / "config.yaml").read_text()
    (cell.directory / "config.yaml").write_text(text.replace("memory: null\n", ""))
    assert changed(cell.config) is None  # what did not exist then had its default
    earlier.replace(rank=7).save(cell.directory / "config.yaml")
    with pytest.raises(ValueError, match="random-0.25-s0 holds .*rank is 2, was 7"):
        compare(grid)
    (cell.directory / "config.yaml").write_text("rank: [")
    assert changed(cell.config) is None and "cannot be read" in damaged(cell.config)


def test_a_cell_that_another_process_runs_is_left_to_it_while_that_lives(place, tmp_path):
    (cell,) = make(place, tmp_path, ["random"]).cells()
    with another_process_in(cell.directory):
        assert Runner().run(cell.config).status == TAKEN
        assert [path.name for path in cell.directory.iterdir()] == [".oasis"]
    assert Runner().run(cell.config).status == DONE


def test_checkpoints_that_a_kill_left_to_a_finished_run_are_removed(place, tmp_path):
    grid = make(place, tmp_path, ["random"], run={"save_steps": 4})
    (cell,) = grid.cells()
    run(cell.config, progress=False)
    assert len(list(cell.directory.glob("checkpoint-*"))) == 2
    (cell.directory / "checkpoint-best").mkdir()
    assert compare(grid, console=Console(file=io.StringIO())).finished == [cell]
    assert [path.name for path in cell.directory.glob("checkpoint-*")] == ["checkpoint-best"]


class Here(Pool):
    """Runs the cells in this process."""

    def run(self):
        for cell in self.pending:
            self._account(cell, Runner().run(cell.config))


def test_damage_of_one_cell_is_named_and_the_others_go_on(place, tmp_path, monkeypatch):
    monkeypatch.setattr("oasis.lab.compare.runner.Pool", Here)
    grid = make(place, tmp_path, ["random", "full", "fragile", "vanilla"])
    screen = Console(file=io.StringIO(), width=200)
    random, full, fragile, vanilla = grid.cells()
    runner = Runner()
    for cell in (random, full):
        assert runner.run(cell.config).status == DONE
    (random.directory / "config.yaml").write_text("rank: [")
    (full.directory / "checkpoint-8").mkdir()  # nobody's
    for cell in (fragile, vanilla):
        cell.directory.mkdir()
    (fragile.directory / "events.jsonl").mkdir()
    (vanilla.directory / "events.jsonl").write_bytes(b"\xff{[\n" * 3)
    done = compare(grid, workers=1, console=screen)
    assert sorted(cell.label for cell in done.finished) == ["full", "vanilla"]
    said = {cell.label: message for cell, message in done.failed}
    assert str(random.directory / "config.yaml") in said["random"]
    assert str(fragile.directory / "events.jsonl") in said["fragile"]
    assert (random.directory / "config.yaml").read_text() == "rank: ["
    assert (full.directory / "checkpoint-8").is_dir()
    again = compare(make(place, tmp_path, ["random"]), overwrite=True, console=screen)
    assert again.finished == [random] and not again.failed


def test_a_failure_that_cannot_be_written_down_is_still_reported(place, tmp_path, monkeypatch):
    (cell,) = make(place, tmp_path, ["fragile"]).cells()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "there")

    monkeypatch.setattr("oasis.train.atomic.write", full)
    outcome = Runner().run(cell.config)
    assert outcome.status == FAILED and "No space left on device: 'there'" in outcome.message


# ---- the pool ----


def test_workers_side_by_side_and_the_others_go_on_when_runs_fail(place, tmp_path):
    broken = [
        {"policy": "fragile", "label": "raises"},
        {"policy": "fragile", "label": "dies", "options": {"how": "die"}},
    ]
    grid = make(place, tmp_path, [*broken, "random", "full"])
    screen = Console(file=io.StringIO(), width=200)
    done = compare(grid, workers=2, console=screen)
    assert sorted(cell.label for cell in done.finished) == ["full", "random"]
    failed = {cell.label: message for cell, message in done.failed}
    assert failed["raises"] == "ValueError: it broke" and "ended with status 3" in failed["dies"]
    assert "status 3" in (tmp_path / "runs" / "dies-0.25-s0" / "error.txt").read_text()
    error = (tmp_path / "runs" / "raises-0.25-s0" / "error.txt").read_text()
    assert "Traceback" in error and "it broke" in error
    text = screen.file.getvalue()
    assert "4 runs, 0 of them finished before" in text and "[4/4]" in text and "A_last" in text
    assert all(state(cell.config) == FINISHED for cell in done.finished)
    # Once more: what is finished needs no worker.
    again = compare(make(place, tmp_path, ["random", "full"]), console=screen)
    assert len(again.finished) == 2 and not again.failed


def test_a_worker_that_dies_between_two_cells_fails_none(place, tmp_path):
    grid = make(place, tmp_path, ["random"])
    (cell,) = grid.cells()
    report = Report()
    pool = Pool(grid, [cell], 1, Progress([cell], [], Console(file=io.StringIO())), report)
    idle = pool._start()
    idle.process.kill()
    idle.process.join()
    pool.run()
    assert report.finished == [cell] and not report.failed and pool.started == 2


def test_cells_go_to_the_worker_that_has_their_workspace(place, tmp_path):
    entry = {"policy": "random", "label": "other words", "run": {"words": 5}}
    grid = make(place, tmp_path, ["random", entry, "full"], seeds=[0, 1])
    cells = grid.cells()
    screen = Console(file=io.StringIO())
    pool = Pool(grid, cells, 1, Progress(cells, [], screen), None)
    worker = type("Idle", (), {"cell": None, "key": None})()
    from oasis.lab.compare.worker import shared_key

    order = []
    while pool.pending:
        cell = pool._next_for(worker)
        worker.key = shared_key(cell.config)
        pool.pending.remove(cell)
        order.append(cell.name)
    words = ["other_words-0.25-s0", "other_words-0.25-s1"]
    assert order == [
        "random-0.25-s0",
        "full-1-s0",
        words[0],
        words[1],
        "random-0.25-s1",
        "full-1-s1",
    ]
    assert number_of_workers(make(place, tmp_path, ["random"], workers=9), cells) == 6
