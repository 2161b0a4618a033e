"""The grid of a comparison: a YAML file, expanded to one `RunConfig` per cell."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from oasis import policies
from oasis.lab import preflight, strict_yaml
from oasis.lab.compare.imports import load_modules
from oasis.lab.config import RunConfig, check_seed, check_text, override
from oasis.lab.names import check_folder_name
from oasis.train import atomic

# Settings of a run that the grid itself decides; `run` and an entry's `run` may not have them.
DECIDED = {
    "name": "made from label, ratio and seed",
    "out": "set `out` of the grid",
    "policy": "name it under `policies`",
    "policy_options": "set `options` of an entry of `policies`",
    "label": "set `label` of an entry of `policies`",
    "ratio": "set `ratios`",
    "seed": "set `seeds`",
    "resume": "finished and killed runs are told apart by themselves",
    "stop_after": "interrupt the comparison instead",
}
SAVE_STEPS = 50  # steps between two checkpoints of a run, where `run.save_steps` is not set
# Settings with one value per task, which a task order permutes along with the tasks.
PER_TASK = ("tasks", "arrivals", "held_out")


@dataclass(frozen=True)
class Cell:
    """One run of the grid: what it is called, what runs, which entry and order it belongs to."""

    config: RunConfig
    label: str
    order: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def directory(self) -> Path:
        return self.config.directory


@dataclass
class Entry:
    """One line of `policies`: a policy with its options, and what it does not share with the rest.

    `ratios`, `seeds`, `orders` None are those of the grid; `run` replaces settings of its `run`.
    """

    policy: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    ratios: list[float] | None = None
    seeds: list[int] | None = None
    orders: list[list[int]] | None = None
    run: dict[str, Any] = field(default_factory=dict)


@dataclass
class Grid:
    """What `oasis compare` runs. Every field can be set in the YAML file or as `key=value`.

    `policies` lists names of policies, or mappings with `policy` and any of `label` (what reports
    call it; default the policy's name), `options` (of the policy), `ratios`, `seeds`, `orders` and
    `run` (settings of RunConfig) that hold for this entry alone. Each runs with every one of
    `ratios`, `seeds` and `orders` (permutations of the tasks, by index); `full` has ratio 1 and
    runs once per seed and order. `run` are the settings that all runs share; a checkpoint is
    written every 50 steps where its `save_steps` does not say otherwise, so that a killed run goes
    on.

    Runs are in the folder `out`/runs, one folder each; `workers` of them go side by side ("auto":
    one per core, at most eight; one where a GPU is used). `imports` are modules, or .py files
    relative to the YAML file, that register policies or tasks of one's own.
    """

    name: str = "compare"
    out: str = ""
    workers: int | str = "auto"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    ratios: list[float] = field(default_factory=lambda: [0.25])
    orders: list[list[int]] | None = None
    run: dict[str, Any] = field(default_factory=dict)
    policies: list[Any] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out = self.out or f"runs/{self.name}"
        for name in ("name", "out"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected a name")
            check_text(name, getattr(self, name))
        check_folder_name("name", self.name)
        self.out = os.path.expanduser(self.out)
        good = isinstance(self.workers, int) and not isinstance(self.workers, bool)
        if self.workers != "auto" and not (good and self.workers >= 1):
            raise ValueError(f"workers: got {self.workers!r}, expected 'auto' or at least 1")
        if not isinstance(self.run, dict):
            raise ValueError(f"run: got {self.run!r}, expected a mapping of settings")
        if not isinstance(self.imports, list) or not all(isinstance(i, str) for i in self.imports):
            raise ValueError(f"imports: got {self.imports!r}, expected a list of modules or files")
        for item in self.imports:
            check_text("imports", item)
        _check_run("run", self.run)
        self.seeds = _seeds("seeds", self.seeds)
        self.ratios = _list("ratios", self.ratios, _is_ratio, "numbers in (0, 1]")
        if not isinstance(self.policies, list) or not self.policies:
            raise ValueError(f"policies: got {self.policies!r}, expected a list of policies")
        load_modules(self.imports)
        self.entries = [_entry(index, item) for index, item in enumerate(self.policies)]
        labels = [entry.label for entry in self.entries]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"policies: label {label!r} is there more than once")
        self.cells()

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Grid:
        """Read a YAML file and apply overrides `key=value`; `run.arrivals=40` reaches inside.

        `base` in the file names another one, relative to it, whose `run` (and nothing else) holds
        here too but for what this file's own `run` says. An unknown key is an error that names the
        nearest known one.
        """
        path = Path(path)
        with strict_yaml.located(path, overrides):
            return cls._load(path, overrides)

    @classmethod
    def _load(cls, path: Path, overrides: Sequence[str]) -> Grid:
        settings = _read(path)
        if (base := settings.pop("base", None)) is not None:
            settings["run"] = {**_run_of(path, base), **settings.get("run", {})}
        settings = override(settings, overrides)
        _known("", settings, [spec.name for spec in dataclasses.fields(cls)])
        settings.setdefault("name", path.stem)
        files = settings.get("imports")
        if isinstance(files, list):
            settings["imports"] = [_beside(path, item) for item in files]
        return cls(**settings)

    def save(self, path: Path) -> None:
        """Write what `load` reads."""
        text = yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, text)

    def cells(self) -> list[Cell]:
        """All runs: seed outermost, then as listed, so that one whole seed comes first.

        ValueError for two cells of the same name, or two names for the same run.
        """
        cells: list[Cell] = []
        names: dict[str, Cell] = {}
        same: dict[str, Cell] = {}
        for seed in self._all_seeds():
            for entry in self.entries:
                if seed in self._seeds_of(entry):
                    cells.extend(self._of(entry, seed))
        for cell in cells:
            if cell.name in names:
                raise ValueError(f"policies: two runs would be called {cell.name!r}")
            names[cell.name] = cell
            what = repr(sorted(_what(cell.config).items()))
            if what in same:
                raise ValueError(
                    f"policies: {same[what].name!r} and {cell.name!r} are the same run"
                )
            same[what] = cell
        return cells

    def _all_seeds(self) -> list[int]:
        """Seeds of the grid, then those that single entries add."""
        lists = [self.seeds, *(entry.seeds or [] for entry in self.entries)]
        return list(dict.fromkeys(seed for seeds in lists for seed in seeds))

    def check(self) -> None:
        """ValueError for what this machine does not have of what the grid names."""
        for entry in self.entries:
            with self._named(entry):
                preflight.check(next(self._of(entry, self._seeds_of(entry)[0])).config)

    def _seeds_of(self, entry: Entry) -> list[int]:
        return self.seeds if entry.seeds is None else entry.seeds

    @contextmanager
    def _named(self, entry: Entry) -> Iterator[None]:
        """Errors that begin with a setting of a run say which `run` of the file has it."""
        try:
            yield
        except (TypeError, ValueError) as error:
            setting = str(error).partition(":")[0]
            if setting in entry.run:
                raise type(error)(f"policies[{self.entries.index(entry)}].run.{error}") from error
            if setting in self.run:
                raise type(error)(f"run.{error}") from error
            raise

    def _of(self, entry: Entry, seed: int) -> Iterator[Cell]:
        settings = {"save_steps": SAVE_STEPS, **self.run, **entry.run}
        with self._named(entry):
            tasks = RunConfig.from_mapping(settings).tasks
        orders = entry.orders or self.orders or [list(range(len(tasks)))]
        ratios = [1.0] if entry.policy == "full" else (entry.ratios or self.ratios)
        for order in _orders(orders, len(tasks)):
            for ratio in ratios:
                own = {"policy": entry.policy, "policy_options": entry.options, "ratio": ratio}
                own |= {"seed": seed, "out": str(Path(self.out) / "runs")}
                own["name"] = _name(entry.label, ratio, seed, order)
                check_folder_name(f"policies: label {entry.label!r}: name", own["name"])
                own["label"] = entry.label
                config = RunConfig.from_mapping({**_permuted(settings, tasks, order), **own})
                yield Cell(config, entry.label, order)


def _read(path: Path) -> dict[str, Any]:
    settings = strict_yaml.read(path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: expected lines of 'key: value'")
    if not isinstance(settings.get("run", {}), dict):
        raise ValueError(f"run: got {settings['run']!r}, expected a mapping of settings")
    return settings


def _run_of(path: Path, base: Any) -> dict[str, Any]:
    """`run` of the file that `path` builds on."""
    if not isinstance(base, str):
        raise ValueError(f"base: got {base!r}, expected the name of a YAML file")
    check_text("base", base)
    settings = _read(path.parent / base)
    if "base" in settings:
        raise ValueError(f"base: {base} builds on {settings['base']} itself; name that file")
    return settings.get("run", {})


def _beside(path: Path, item: Any) -> Any:
    """An entry of `imports`, where it is a file as seen from the folder of `path`."""
    if not isinstance(item, str) or not item.endswith(".py") or "\0" in item:
        return item
    return str((path.parent / os.path.expanduser(item)).resolve())


def _entry(index: int, item: Any) -> Entry:
    where = f"policies[{index}]"
    if isinstance(item, str):
        item = {"policy": item}
    if not isinstance(item, dict):
        raise ValueError(f"{where}: got {item!r}, expected the name of a policy or a mapping")
    _known(where, item, [spec.name for spec in dataclasses.fields(Entry)])
    policy = item.get("policy")
    if policy not in policies.names():
        raise ValueError(
            f"{where}.policy: got {policy!r}; the nearest is {_near(policy, policies.names())!r}"
        )
    entry = Entry(**{"label": policy, **item})
    if not isinstance(entry.label, str) or not entry.label:
        raise ValueError(f"{where}.label: got {entry.label!r}, expected a text")
    check_text(f"{where}.label", entry.label)
    for name in ("options", "run"):
        if not isinstance(getattr(entry, name), dict):
            raise ValueError(f"{where}.{name}: got {getattr(entry, name)!r}, expected a mapping")
    _check_run(f"{where}.run", entry.run)
    if entry.ratios is not None:
        entry.ratios = _list(f"{where}.ratios", entry.ratios, _is_ratio, "numbers in (0, 1]")
    if entry.seeds is not None:
        entry.seeds = _seeds(f"{where}.seeds", entry.seeds)
    try:  # what the policy does not take is found now, not after hours of other runs
        policies.create(policy, (entry.ratios or [0.25])[0], 0, **entry.options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}.options: {error}") from error
    return entry


def _known(where: str, settings: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in settings:
        if key not in known:
            name = f"{where}.{key}" if where else str(key)
            raise ValueError(f"{name}: unknown setting; the nearest is {_near(key, known)!r}")


def _near(key: Any, known: Sequence[str]) -> str:
    return difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]


def _check_run(where: str, settings: Mapping[str, Any]) -> None:
    _known(where, settings, [spec.name for spec in dataclasses.fields(RunConfig)])
    for key in settings:
        if key in DECIDED:
            raise ValueError(f"{where}.{key}: not a setting of all runs; {DECIDED[key]}")


def _is_ratio(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _list(name: str, values: Any, good, expected: str) -> list:
    if not isinstance(values, list) or not values or not all(map(good, values)):
        raise ValueError(f"{name}: got {values!r}, expected a list of {expected}")
    if len(set(values)) < len(values):
        raise ValueError(f"{name}: got {values!r}, expected each once")
    return values


def _seeds(name: str, values: Any) -> list[int]:
    for value in values if isinstance(values, list) else []:
        check_seed(name, value)
    return _list(name, values, lambda value: True, "integers from 0")


def _orders(orders: Any, tasks: int) -> list[tuple[int, ...]]:
    expected = f"a list of permutations of {list(range(tasks))}"
    if not isinstance(orders, list):
        raise ValueError(f"orders: got {orders!r}, expected {expected}")
    for order in orders:
        if not isinstance(order, list) or sorted(order) != list(range(tasks)):
            raise ValueError(f"orders: got {order!r}, expected {expected}")
    unique = list(dict.fromkeys(map(tuple, orders)))
    if len(unique) < len(orders):
        raise ValueError(f"orders: got {orders!r}, expected each once")
    return unique


def _permuted(settings: dict, tasks: list[str], order: Sequence[int]) -> dict:
    values = {**settings, "tasks": tasks}
    for name in PER_TASK:
        if isinstance(values.get(name), list):
            values[name] = [values[name][index] for index in order]
    return values


def _name(label: str, ratio: float, seed: int, order: Sequence[int]) -> str:
    """A folder name: `oasis-0.25-s0`, with the order of the tasks behind it where it is another."""
    slug = re.sub(r"[^A-Za-z0-9_.+=]+", "_", label).strip("_") or "run"
    name = f"{slug}-{ratio:g}-s{seed}"
    if list(order) != sorted(order):
        name += "-o" + ("." if len(order) > 10 else "").join(map(str, order))
    return name


def _what(config: RunConfig) -> dict[str, Any]:
    """What makes a run the run it is: all settings but its names."""
    names = ("name", "out", "label")
    return {k: v for k, v in dataclasses.asdict(config).items() if k not in names}
