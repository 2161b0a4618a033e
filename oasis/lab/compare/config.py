"""The grid of a comparison: a YAML file, expanded to one `RunConfig` per cell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from oasis import policies
from oasis.lab import preflight, strict_yaml
from oasis.lab.compare.imports import load_modules
from oasis.lab.config import RunConfig
from oasis.lab.names import check_folder_name
from oasis.lab.settings import Scope, Settings, WrongSetting, in_grid, names, override, setting
from oasis.lab.settings.errors import unknown
from oasis.lab.settings.kinds import (
    FolderName,
    Must,
    PathText,
    Positive,
    Seed,
    Share,
    Text,
)
from oasis.lab.settings.selection import PolicyName

SAVE_STEPS = 50  # steps between two checkpoints of a run, where `run.save_steps` is not set


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


def _each_once(values: list[Any]) -> bool:
    return 0 < len(values) == len(set(values))


def _run(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of runs: those that there are, but for those that the grid decides."""
    for key in settings:
        if key not in RunConfig.model_fields:
            raise unknown(key, key, RunConfig.model_fields)
        if by := in_grid(RunConfig).get(key):
            raise WrongSetting(f"{key}: not a setting of all runs; {by}")
    return settings


Seeds = Annotated[
    list[Seed], Must("a list of integers from 0, less than 2^32, each once", _each_once)
]
Ratios = Annotated[list[Share], Must("a list of numbers in (0, 1], each once", _each_once)]
Orders = Annotated[list[list[int]], Must("a list of permutations of the tasks, by index")]
RunSettings = Annotated[
    dict[str, Any], AfterValidator(_run), Must("a mapping of settings of a run")
]


class Entry(Settings):
    """Entry of `policies`: the name of a policy, or a mapping."""

    policy: PolicyName = setting(..., "The policy.")
    label: Annotated[Text, Must("a text, not empty", bool)] = setting(
        ..., "What reports call it; when not given, the policy's name."
    )
    options: dict[str, Any] = setting({}, "Of the policy.")
    ratios: Ratios | None = setting(None, "Of this entry; null: those of the grid.")
    seeds: Seeds | None = setting(None, "Of this entry; null: those of the grid.")
    orders: Orders | None = setting(None, "Of this entry; null: those of the grid.")
    run: RunSettings = setting({}, "Settings that replace those of the grid's `run`.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"policy": given}
        if not isinstance(given, dict):
            raise ValueError(f"got {given!r}, expected the name of a policy or a mapping")
        return {"label": given["policy"], **given} if "policy" in given else given

    @model_validator(mode="after")
    def _policy_takes_its_options(self) -> Entry:
        try:  # what the policy does not take is found now, not after hours of other runs
            policies.create(self.policy, (self.ratios or [0.25])[0], 0, **self.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"options: {error}") from error
        return self


class Grid(Settings):
    """Grid of a comparison: what `oasis compare` runs.

    Each entry of `policies` runs with every one of `ratios`, `seeds` and `orders`; `full` has ratio
    1 and runs once per seed and order. Runs are in the folder `out`/runs, one folder each; a
    checkpoint is written every 50 steps where `run.save_steps` does not say otherwise, so that a
    killed run goes on.
    """

    name: FolderName = setting("compare", "What it is called; when not given, the file's name.")
    out: PathText = setting("", "Folder of runs and report; when not given, runs/`name`.")
    workers: Annotated[
        Positive | Annotated[str, Must("auto", "auto".__eq__)],
        Must("auto, or an integer from 1, less than 2^31"),
    ] = setting("auto", "Runs side by side; auto: one per core, at most 8, but one on a GPU.")
    imports: Annotated[
        list[Text],
        AfterValidator(lambda names: load_modules(names) or names),
        Must("a list of modules and files"),
    ] = setting(
        [],
        "Modules, or .py files relative to the YAML file, that register policies or tasks of "
        "one's own.",
    )
    seeds: Seeds = setting([0, 1, 2], "Seeds of every entry.")
    ratios: Ratios = setting([0.25], "Ratios of every entry.")
    orders: Orders | None = setting(None, "Orders of the tasks; null: as they are.")
    run: RunSettings = setting({}, "Settings of all runs.")
    policies: Annotated[list[Entry], Must("a list of policies, at least one", bool)] = setting(
        ..., "The entries."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "out": given.get("out") or f"runs/{given.get('name', 'compare')}"}

    @model_validator(mode="after")
    def _cells_are_distinct(self) -> Grid:
        labels = [entry.label for entry in self.policies]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"policies: label {label!r} is there more than once")
        self.cells()
        return self

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
        settings.setdefault("name", path.stem)
        files = settings.get("imports")
        if isinstance(files, list):
            settings["imports"] = [_beside(path, item) for item in files]
        return cls.from_mapping(settings)

    def cells(self) -> list[Cell]:
        """All runs: seed outermost, then as listed, so that one whole seed comes first.

        ValueError for two cells of the same name, or two names for the same run.
        """
        cells: list[Cell] = []
        called: dict[str, Cell] = {}
        same: dict[str, Cell] = {}
        for seed in self._all_seeds():
            for entry in self.policies:
                if seed in self._seeds_of(entry):
                    cells.extend(self._of(entry, seed))
        for cell in cells:
            if cell.name in called:
                raise ValueError(f"policies: two runs would be called {cell.name!r}")
            called[cell.name] = cell
            identity = repr(cell.config.model_dump(exclude=set(names(RunConfig, Scope.NAME))))
            if identity in same:
                twin = same[identity].name
                raise ValueError(f"policies: {twin!r} and {cell.name!r} are the same run")
            same[identity] = cell
        return cells

    def _all_seeds(self) -> list[int]:
        """Seeds of the grid, then those that single entries add."""
        lists = [self.seeds, *(entry.seeds or [] for entry in self.policies)]
        return list(dict.fromkeys(seed for seeds in lists for seed in seeds))

    def check(self) -> None:
        """ValueError for what this machine does not have of what the grid names."""
        for entry in self.policies:
            with self._placed(entry):
                preflight.check(next(self._of(entry, self._seeds_of(entry)[0])).config)

    def _seeds_of(self, entry: Entry) -> list[int]:
        return self.seeds if entry.seeds is None else entry.seeds

    @contextmanager
    def _placed(self, entry: Entry) -> Iterator[None]:
        """Errors that begin with a setting of a run say which `run` of the file has it."""
        try:
            yield
        except (TypeError, ValueError) as error:
            setting = re.split(r"[:.\[]", str(error))[0]
            if setting in entry.run:
                at = next(i for i, other in enumerate(self.policies) if other is entry)
                raise type(error)(f"policies[{at}].run.{error}") from error
            if setting in self.run:
                raise type(error)(f"run.{error}") from error
            raise

    def _of(self, entry: Entry, seed: int) -> Iterator[Cell]:
        settings = {"save_steps": SAVE_STEPS, **self.run, **entry.run}
        with self._placed(entry):
            tasks = RunConfig.from_mapping(settings).tasks
        if not tasks and (entry.orders or self.orders):
            raise ValueError(
                "orders: the tasks are those of data, in the order of its files; an entry's "
                "run.data has another"
            )
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
    if not isinstance(base, str) or "\0" in base:
        raise ValueError(f"base: got {base!r}, expected the name of a YAML file")
    settings = _read(path.parent / base)
    if "base" in settings:
        raise ValueError(f"base: {base} builds on {settings['base']} itself; name that file")
    return settings.get("run", {})


def _beside(path: Path, item: Any) -> Any:
    """An entry of `imports`, where it is a file as seen from the folder of `path`."""
    if not isinstance(item, str) or not item.endswith(".py") or "\0" in item:
        return item
    return str((path.parent / os.path.expanduser(item)).resolve())


def _orders(orders: list[list[int]], tasks: int) -> list[tuple[int, ...]]:
    for order in orders:
        if sorted(order) != list(range(tasks)):
            raise ValueError(
                f"orders: got {order!r}, expected a list of permutations of {list(range(tasks))}"
            )
    unique = list(dict.fromkeys(map(tuple, orders)))
    if len(unique) < len(orders):
        raise ValueError(f"orders: got {orders!r}, expected each once")
    return unique


def _permuted(
    settings: Mapping[str, Any], tasks: list[str], order: Sequence[int]
) -> dict[str, Any]:
    values = {**settings, "tasks": tasks}
    for name in names(RunConfig, Scope.PER_TASK):
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
