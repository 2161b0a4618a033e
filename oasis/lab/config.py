"""Settings of a training run: a dataclass, read from YAML with `key=value` overrides."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from oasis import policies
from oasis.lab import strict_yaml
from oasis.lab.data.benchmarks import PRESETS
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.names import check_folder_name
from oasis.train import atomic
from oasis.train.signals.compute import LAYERS

MOST = 1 << 31  # of any number that counts something, steps and rows among them
SEEDS = 1 << 32  # NumPy and scikit-learn take no more
# AdamW moves a weight by about the learning rate in a step: 1 is far beyond all use.
MOST_RATE = 1.0
TASKS = ("bbc", "sentiment", "newsgroups")  # where neither tasks nor data are given
# As transformers names them; the last one needs `decay_steps`.
SCHEDULES = ("cosine", "linear", "constant_with_warmup", "warmup_stable_decay")


# Settings that a resumed run may change without becoming another run.
FREE = {
    "name",
    "out",
    "label",
    "cache_folder",
    "resume",
    "stop_after",
    "save_steps",
    "logging_steps",
    "device",
}


@dataclass
class RunConfig:
    """What `oasis train` runs. Every field can be set in the YAML file or as `key=value`.

    Stream: `tasks` arrive in this order, `arrivals` samples each (one number, or one per task;
    null: 400); texts are cut to `words` words and examples to `max_length` tokens (null: 128). Of
    each task's arrivals a share `repeats` are near-duplicates of others (see repeats.py), and
    further `off_task_share` x arrivals rows of the task `off_task`, on which nothing is evaluated,
    come in between.
    `data_seed` says which examples are taken. `memory` bounds the episodic memory (null:
    unbounded). Candidate batches of `batch_size` come `iterations_per_sample` per arrival, drawn
    from memory alone; with `epochs` instead, all rows of a task come that many times in turn.

    In place of packaged tasks, `data` is rows of one's own: a file, several, or a mapping
    (oasis/lab/data/own/settings.py); then `epochs` is 1 unless given. With `preset` ("trace" or
    "long_sequence") it is the folder of that benchmark, of which `tasks` (all, if not given) are
    taken. For both, null is all there is for `arrivals` and `held_out`, and 1024 tokens for
    `max_length`.

    Selection: `policy` with `ratio` in (0, 1], further `policy_options`, and `seed` (which also
    seeds the order of arrival, the memory's draws and LoRA's first weights). `layer` is the one
    whose gradients score: "head", from a forward, or "last_block" (its LoRA weights). `label` is
    what reports call it (null: the policy's name).

    Model: `model` is "smollm2" (packaged, see assets.py), a folder or a hub name. LoRA of `rank`
    and `alpha` (null: 2 x rank) on all linear layers of the `lora_layers` top blocks (null: all).
    `cache_frozen` runs the frozen blocks below those once per text and keeps what they give, in
    memory and, where `cache_folder` names a folder, on disk for other runs.

    Training: AdamW without weight decay, `learning_rate` after `warmup_steps`, then on
    `lr_schedule` ("cosine", "linear", "constant_with_warmup", or "warmup_stable_decay", which is
    constant until the last `decay_steps` and then falls to 0).
    A checkpoint every `save_steps` steps (0: none); `stop_after` that many steps (0: never) the run
    writes one and stops; `resume` goes on from the last one. The Trainer logs every `logging_steps`
    steps (0: never).

    Evaluation: at every task boundary and before training, on the tasks `seen` so far or `all`,
    on `held_out` examples a task (null: 400), at boundaries before the last on the first
    `boundary_held_out` of them (null: all). `accuracy` is "micro" (share of examples) or "macro"
    (mean over the answers; held-out examples are then balanced over the answers as far as they go).
    `forward_batches` candidate batches are timed in a plain forward with loss, to compare with.

    `out`/`name` is the run directory (docs/runs.md), `name` a plain one of at most 100 bytes;
    `device` and `dtype` are "auto" or what torch calls them. In `out`, `model` and `cache_folder` a
    `~` at the beginning is the home folder.
    """

    name: str = "run"
    out: str = "runs"
    tasks: list[str] | None = None
    data: str | list[str] | dict[str, Any] | None = None
    preset: str | None = None
    epochs: int | None = None
    arrivals: int | list[int] | None = None
    repeats: float = 0.0
    off_task: str | None = None
    off_task_share: float = 0.0
    data_seed: int = 0
    held_out: int | None = None
    boundary_held_out: int | None = None
    words: int = 36
    max_length: int | None = None
    memory: int | None = None
    batch_size: int = 16
    iterations_per_sample: float = 0.125
    policy: str = "oasis"
    label: str | None = None
    ratio: float = 0.25
    policy_options: dict[str, Any] = field(default_factory=dict)
    layer: str = "head"
    seed: int = 0
    model: str = "smollm2"
    rank: int = 16
    alpha: int | None = None
    lora_layers: int | None = None
    cache_frozen: bool = False
    cache_folder: str | None = None
    learning_rate: float = 5e-4
    lr_schedule: str = "cosine"
    warmup_steps: int = 0
    decay_steps: int = 0
    max_grad_norm: float = 1.0
    evaluate: str = "seen"
    accuracy: str = "micro"
    eval_batch_size: int = 32
    forward_batches: int = 0
    logging_steps: int = 10
    save_steps: int = 0
    stop_after: int = 0
    resume: bool = False
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            value = _coerce(getattr(self, spec.name), hints[spec.name])
            if not _fits(value, hints[spec.name]):
                raise TypeError(
                    f"{spec.name}: got {value!r} ({type(value).__name__}), "
                    f"expected {_describe(hints[spec.name])}"
                )
            setattr(self, spec.name, value)
        for name in ("out", "model", "cache_folder"):
            if getattr(self, name) is not None:
                setattr(self, name, os.path.expanduser(getattr(self, name)))
        self._settle()
        self._check_limits()
        self._check()

    def _settle(self) -> None:
        """What null means, and which of the settings of the stream go together."""
        own = self.data is not None
        if self.preset is not None and (self.preset not in PRESETS or not own):
            raise ValueError(
                f"preset: got {self.preset!r} with data {self.data!r}, expected one of "
                f"{', '.join(PRESETS)} and the folder of the benchmark as data"
            )
        if own:
            self.data = DataSettings.parse(self.data).told()
        if own and self.preset is None and (self.tasks or self.arrivals or self.held_out):
            raise ValueError(
                "data: the files make the tasks; expected no tasks, arrivals or held_out beside "
                "(data.task, data.rows, data.test_share)"
            )
        if self.tasks is None:
            self.tasks = list(PRESETS[self.preset]) if self.preset else [] if own else [*TASKS]
        if self.max_length is None:
            self.max_length = 1024 if own else 128
        if self.epochs is None and own and self.preset is None:
            self.epochs = 1
        if not own:
            self.arrivals = 400 if self.arrivals is None else self.arrivals
            self.held_out = 400 if self.held_out is None else self.held_out

    def _check_limits(self) -> None:
        """Texts that no file can be called by, and numbers that nothing can count up to."""
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str):
                    check_text(spec.name, item)
                elif isinstance(item, int) and "seed" not in spec.name and not item < MOST:
                    raise ValueError(f"{spec.name}: got {item}, expected less than 2^31")
        for name in ("seed", "data_seed"):
            check_seed(name, getattr(self, name))
        if not 0 < self.learning_rate <= MOST_RATE:
            raise ValueError(
                f"learning_rate: got {self.learning_rate}, expected more than 0 and at most "
                f"{MOST_RATE:g}"
            )
        arrivals = sum(count or 1 for count in self.arrivals_per_task)
        for name in ("iterations_per_sample", "off_task_share"):
            if not arrivals * getattr(self, name) < MOST:
                raise ValueError(
                    f"{name}: got {getattr(self, name)} for {arrivals} arrivals, expected less "
                    "than 2^31 in all"
                )

    def _check(self) -> None:
        if self.policy not in policies.names():
            expected = ", ".join(policies.names())
            raise ValueError(f"policy: got {self.policy!r}, expected one of {expected}")
        check_folder_name("name", self.name)
        if not 0 <= self.repeats < 1:
            raise ValueError(f"repeats: got {self.repeats}, expected a share in [0, 1)")
        if not 0 <= self.off_task_share < math.inf:
            raise ValueError(f"off_task_share: got {self.off_task_share}, expected 0 or more")
        if (self.off_task is None) != (self.off_task_share == 0):
            raise ValueError("off_task and off_task_share: expected both or neither")
        if self.data is not None and (self.off_task is not None or self.repeats):
            raise ValueError("off_task, repeats: only with packaged tasks, not with data")
        if self.off_task in self.tasks:
            raise ValueError(f"off_task: got {self.off_task!r}, which is among the tasks")
        if self.lr_schedule not in SCHEDULES:
            expected = ", ".join(SCHEDULES)
            raise ValueError(f"lr_schedule: got {self.lr_schedule!r}, expected one of {expected}")
        if (self.lr_schedule == "warmup_stable_decay") != (self.decay_steps > 0):
            raise ValueError(
                f"decay_steps: got {self.decay_steps} with lr_schedule {self.lr_schedule!r}, "
                "expected more than 0 with 'warmup_stable_decay' and 0 with others"
            )
        if self.accuracy not in ("micro", "macro"):
            raise ValueError(f"accuracy: got {self.accuracy!r}, expected 'micro' or 'macro'")
        for name in ("tasks", "policy", "model"):
            if not getattr(self, name) and not (name == "tasks" and self.data):
                raise ValueError(f"{name}: got nothing, expected at least one entry")
        at_least_one = ("held_out", "words", "batch_size", "rank", "eval_batch_size")
        for name in (
            *at_least_one,
            "epochs",
            "memory",
            "alpha",
            "lora_layers",
            "boundary_held_out",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        steps = ("warmup_steps", "decay_steps", "logging_steps", "save_steps", "stop_after")
        for name in (*steps, "forward_batches"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 or more")
        for name in ("iterations_per_sample", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")
        if self.max_length < 2:
            raise ValueError(f"max_length: got {self.max_length}, expected at least 2")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio: got {self.ratio}, expected a number in (0, 1]")
        if self.layer not in LAYERS:
            raise ValueError(f"layer: got {self.layer!r}, expected one of {', '.join(LAYERS)}")
        if self.evaluate not in ("seen", "all"):
            raise ValueError(f"evaluate: got {self.evaluate!r}, expected 'seen' or 'all'")
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks: got {self.tasks}, expected each task once")
        if isinstance(self.arrivals, list) and len(self.arrivals) != len(self.tasks):
            raise ValueError(
                f"arrivals: got {len(self.arrivals)} numbers, expected one or {len(self.tasks)}"
            )
        if any(count is not None and count < 1 for count in self.arrivals_per_task):
            raise ValueError(f"arrivals: got {self.arrivals}, expected at least 1 per task")
        if self.cache_frozen and self.lora_layers is None:
            raise ValueError("cache_frozen: nothing is frozen while lora_layers is null; set it")
        if self.cache_folder is not None and not self.cache_frozen:
            raise ValueError("cache_folder: only with cache_frozen: true")

    @property
    def arrivals_per_task(self) -> list[int | None]:
        """`arrivals`, one number per task; None: all there are."""
        if isinstance(self.arrivals, list):
            return self.arrivals
        return [self.arrivals] * len(self.tasks)

    @property
    def directory(self) -> Path:
        """The run directory, `out`/`name`."""
        return Path(self.out) / self.name

    @classmethod
    def from_mapping(cls, settings: dict[str, Any]) -> RunConfig:
        """A config of `settings`; an unknown key is an error that names the nearest known one."""
        known = [spec.name for spec in dataclasses.fields(cls)]
        for key in settings:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
                raise ValueError(f"{key}: unknown setting; the nearest is {near[0]!r}")
        return cls(**settings)

    @classmethod
    def load(
        cls,
        path: str | Path,
        overrides: typing.Sequence[str] = (),
        given: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> RunConfig:
        """Read a YAML file and apply overrides `key=value` (values in YAML, see `override`), then
        settings `given` as they are.

        Errors that come from the file name it, and the line.
        """
        settings = strict_yaml.read(path)
        if settings is None:
            raise ValueError(f"{path}: the file is empty, expected lines of 'key: value'")
        if not isinstance(settings, dict):
            found = type(settings).__name__
            raise ValueError(f"{path}: got a {found}, expected lines of 'key: value'")
        with strict_yaml.located(path, overrides):
            return cls.from_mapping({**override(settings, overrides), **given})

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with some settings changed, checked again."""
        return dataclasses.replace(self, **changes)

    def save(self, path: str | Path) -> None:
        """Write all settings as YAML."""
        atomic.write(path, yaml.safe_dump(dataclasses.asdict(self), sort_keys=False))


def override(settings: dict[str, Any], overrides: typing.Sequence[str]) -> dict[str, Any]:
    """`settings` with `key=value` applied; `policy_options.beta=0.9` reaches inside a mapping."""
    result = dict(settings)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"override: got {text!r}, expected key=value")
        try:
            parsed = strict_yaml.parse(value, key)
        except ValueError as error:
            raise ValueError(f"override: {text!r} is not valid YAML after '=': {error}") from error
        outer, dot, inner = key.partition(".")
        if dot:
            if not isinstance(result.get(outer, {}), dict):
                raise ValueError(f"override: {text!r}, but {outer} has no settings inside")
            result[outer] = {**result.get(outer, {}), inner: parsed}
        else:
            result[key] = parsed
    return result


def check_text(setting: str, value: str) -> None:
    """ValueError for a text that no file can be called, and no record hold."""
    if "\0" in value or not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"{setting}: got {value!r}, expected a text without NUL and surrogates")


def check_seed(setting: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < SEEDS:
        raise ValueError(f"{setting}: got {value!r}, expected an integer from 0, less than 2^32")


def difference(config: RunConfig, saved: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """(setting, value, saved value), the first that makes a saved run another run, or None.

    A setting that was not saved, since it did not exist yet, counts as having had its default.
    """
    defaults = dataclasses.asdict(RunConfig())
    for name, value in dataclasses.asdict(config).items():
        before = saved.get(name, defaults[name])
        if name not in FREE and before != value:
            return name, value, before
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def _coerce(value: Any, hint: Any) -> Any:
    """YAML 1.1 reads 5e-4 as text; and 1 is a fine float."""
    if hint is float and isinstance(value, (str, int)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            return value
    if list[str] in _options(hint) and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _fits(value: Any, hint: Any) -> bool:
    for option in _options(hint):
        origin, arguments = typing.get_origin(option) or option, typing.get_args(option)
        if origin is list:
            if isinstance(value, list) and all(_fits(item, arguments[0]) for item in value):
                return True
        elif origin is dict:
            if isinstance(value, dict) and all(isinstance(key, str) for key in value):
                return True
        elif isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            return True
    return False


def _describe(hint: Any) -> str:
    names = [
        "null"
        if option is type(None)
        else getattr(option, "__name__", str(option))
        if typing.get_origin(option) is None
        else str(option)
        for option in _options(hint)
    ]
    return " or ".join(names)
