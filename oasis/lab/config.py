"""Settings of a training run, read from YAML with `key=value` overrides.

Said once, here: type and limits, default, help, and scope. What is refused, what `oasis train
--help-settings` prints and docs/settings.md come from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from oasis.lab import paper, strict_yaml
from oasis.lab.data.benchmarks import PRESETS
from oasis.lab.data.own.settings import Data
from oasis.lab.settings import Scope, Settings, names, override, setting
from oasis.lab.settings.errors import nearest
from oasis.lab.settings.kinds import (
    MOST,
    FolderName,
    ModelName,
    Must,
    Natural,
    Number,
    PathText,
    Positive,
    Seed,
    Share,
    Text,
    Texts,
    one_of,
)
from oasis.lab.settings.selection import Scoring, Selection

NAME, FREE, SHARED = Scope.NAME, Scope.FREE, Scope.SHARED
PER_TASK, VARIES, COLUMN = Scope.PER_TASK, Scope.VARIES, Scope.COLUMN
MODELS = paper.NAMES


def _presets(names: list[str]) -> list[str]:
    known = (*PRESETS, *MODELS)
    for name in names:
        if name not in known:
            expected = ", ".join(known)
            raise ValueError(f"got {name!r}, expected some of {expected}{nearest(name, known)}")
    for kind in (PRESETS, MODELS):
        if len(found := [name for name in names if name in kind]) > 1:
            raise ValueError(f"got {', '.join(found)}, expected at most one of {', '.join(kind)}")
    return names


PresetNames = Annotated[
    Texts, AfterValidator(_presets), Must(f"some of {', '.join((*PRESETS, *MODELS))}")
]


def _named(values: Any, kind: Iterable[str]) -> str | None:
    """The preset of a kind among what is not checked yet."""
    names = values.get("preset") if isinstance(values, dict) else None
    names = [part.strip() for part in names.split(",")] if isinstance(names, str) else names
    names = names if isinstance(names, list) else []
    return next((name for name in names if name in tuple(kind)), None)


class Folder(Settings):
    """Run folder: where a run is, and how it stops and goes on."""

    name: FolderName = setting(
        "run", "The run's folder in `out`.", NAME | FREE, "made from label, ratio and seed"
    )
    out: PathText = setting(
        "runs", "Folder of the runs ([runs.md](runs.md)).", NAME | FREE, "set `out` of the grid"
    )
    label: Text | None = setting(
        None,
        "What reports call the run; null: the policy's name.",
        NAME | FREE,
        "set `label` of an entry of `policies`",
    )
    save_steps: Natural = setting(
        0, "Steps between two checkpoints; 0: none. (In a grid 50.)", FREE
    )
    stop_after: Natural = setting(
        0,
        "Write a checkpoint after that many steps and stop; 0: never.",
        FREE,
        "interrupt the comparison instead",
    )
    resume: bool = setting(
        False,
        "Go on from the last checkpoint, where there is one.",
        FREE,
        "finished and killed runs are told apart by themselves",
    )
    logging_steps: Natural = setting(10, "Steps between two lines of the Trainer; 0: none.", FREE)

    @property
    def directory(self) -> Path:
        """The run directory, `out`/`name`."""
        return Path(self.out) / self.name


class Stream(Settings):
    """Stream: what arrives, and the candidate batches that come of it."""

    data: Data | None = setting(
        None,
        "Rows of your own in place of packaged tasks ([data.md](data.md)), which then make the "
        "tasks; with `preset` the folder of that benchmark.",
        SHARED,
    )
    preset: PresetNames | None = setting(
        None,
        "The benchmark that `data` holds, or a model of the paper with its settings, or both "
        "([data.md](data.md)); what is given beside it counts.",
        SHARED,
    )
    tasks: Texts = setting(
        ["bbc", "sentiment", "newsgroups"],
        "The tasks, in the order of their arrival; all of a `preset` unless given.",
        SHARED | PER_TASK | VARIES,
    )
    arrivals: Annotated[
        Positive | list[Positive] | None,
        Must("an integer from 1, less than 2^31, a list of one per task, or null"),
    ] = setting(
        400,
        "Samples that arrive of each task; null: all, as with `data` unless given.",
        SHARED | PER_TASK,
    )
    repeats: Annotated[Number, Must("a number in [0, 1)", lambda share: 0 <= share < 1)] = setting(
        0.0, "Share of each task's arrivals that are near-duplicates of others.", SHARED | COLUMN
    )
    off_task: Text | None = setting(
        None, "Task of the rows in between on which nothing is evaluated.", SHARED
    )
    off_task_share: Annotated[Number, Field(ge=0)] = setting(
        0.0, "Rows of `off_task`, as a share of the arrivals.", SHARED
    )
    data_seed: Seed = setting(0, "Which examples are taken.", SHARED)
    words: Positive = setting(36, "Words that texts are cut to.", SHARED)
    max_length: Annotated[int, Field(ge=2, lt=MOST)] = setting(
        128, "Tokens that examples are cut to; with `data` 1024 unless given.", SHARED
    )
    memory: Positive | None = setting(
        None, "Samples that the episodic memory holds; null: all that arrived."
    )
    epochs: Positive | None = setting(
        None,
        "How often each row comes; null: candidates are drawn from memory alone. With `data` 1 "
        "unless given, but for a `preset`.",
    )
    batch_size: Positive = setting(16, "Candidates per batch.", COLUMN)
    iterations_per_sample: Annotated[Number, Field(gt=0)] = setting(
        0.125, "Candidate batches per arrival."
    )

    @property
    def benchmark(self) -> str | None:
        """The preset that is a benchmark."""
        return _named({"preset": self.preset}, PRESETS)

    @property
    def paper(self) -> str | None:
        """The preset that is a model of the paper."""
        return _named({"preset": self.preset}, MODELS)

    @property
    def arrivals_per_task(self) -> Sequence[int | None]:
        """`arrivals`, one number per task; None is all there are."""
        return [None] * len(self.tasks) if self.arrivals is None else self.counted_arrivals

    @property
    def counted_arrivals(self) -> list[int]:
        """`arrivals_per_task` where they are numbers, as without `data`."""
        assert self.arrivals is not None
        if isinstance(self.arrivals, list):
            return self.arrivals
        return [self.arrivals] * len(self.tasks)

    @model_validator(mode="before")
    @classmethod
    def _of_own_data(cls, values: Any) -> Any:
        """What is not given means something else with `data`."""
        if not isinstance(values, dict) or values.get("data") is None:
            return values
        preset = _named(values, PRESETS)
        own = {"arrivals": None, "held_out": None, "max_length": 1024}
        if preset is None:
            return {**own, "tasks": [], "epochs": 1, **values}
        return {**own, "tasks": list(PRESETS.get(preset, ())), **values}

    @model_validator(mode="after")
    def _data_makes_the_tasks(self) -> Stream:
        if self.benchmark is not None and (self.data is None or len(self.data.path) > 1):
            raise ValueError("preset: expected the folder of the benchmark as data")
        if self.data is not None and (self.off_task is not None or self.repeats):
            raise ValueError("off_task, repeats: only with packaged tasks, not with data")
        if self.data is None and not self.tasks:
            raise ValueError("tasks: got [], expected a list of texts, at least one; or data")
        if self.data is None and self.arrivals is None:
            raise ValueError("arrivals: got null, expected a number without data")
        if self.data is not None and self.benchmark is None and (self.tasks or self.arrivals):
            raise ValueError(
                "data: the files make the tasks; expected no tasks and no arrivals beside it "
                "(data.task, data.rows)"
            )
        return self

    @model_validator(mode="after")
    def _stream_agrees(self) -> Stream:
        if (self.off_task is None) != (self.off_task_share == 0):
            raise ValueError("off_task and off_task_share: expected both or neither")
        if self.off_task in self.tasks:
            raise ValueError(f"off_task: got {self.off_task!r}, which is among the tasks")
        if len(self.arrivals_per_task) != len(self.tasks):
            got, expected = len(self.arrivals_per_task), len(self.tasks)
            raise ValueError(f"arrivals: got {got} numbers, expected one or {expected}")
        arrivals = sum(count or 1 for count in self.arrivals_per_task)
        for name in ("iterations_per_sample", "off_task_share"):
            if not arrivals * getattr(self, name) < MOST:
                raise ValueError(
                    f"{name}: got {getattr(self, name)} for {arrivals} arrivals, expected less "
                    "than 2^31 in all"
                )
        return self


class Model(Settings):
    """Model: what is trained, and where."""

    model: ModelName = setting(
        "smollm2", "The language model; smollm2 comes as a package.", SHARED | COLUMN
    )
    start: PathText | None = setting(
        None,
        "A finished run of the same model and LoRA, whose weights go on; null: fresh ones.",
        SHARED,
    )
    rank: Positive = setting(16, "Rank of LoRA, on all linear layers.", COLUMN)
    alpha: Positive | None = setting(None, "LoRA's alpha; null: 2 x rank.")
    lora_layers: Positive | None = setting(
        None, "Top blocks that carry LoRA; null: all.", SHARED | COLUMN
    )
    cache_frozen: bool = setting(
        False, "Run the frozen blocks below LoRA once per text and keep what they give.", SHARED
    )
    cache_folder: PathText | None = setting(
        None, "Keep that on disk too, for other runs.", SHARED | FREE
    )
    device: Text = setting("auto", "auto, or what torch calls it.", SHARED | FREE)
    dtype: Text = setting("auto", "auto, or what torch calls the number type.", SHARED)

    @model_validator(mode="after")
    def _something_is_frozen(self) -> Model:
        if self.cache_frozen and self.lora_layers is None:
            raise ValueError("cache_frozen: nothing is frozen while lora_layers is null; set it")
        if self.cache_folder is not None and not self.cache_frozen:
            raise ValueError("cache_folder: only with cache_frozen: true")
        return self


class Training(Settings):
    """Training: optimizer and schedule."""

    # AdamW moves a weight by about the learning rate in a step: 1 is far beyond all use.
    learning_rate: Share = setting(5e-4, "Of AdamW, without weight decay.", COLUMN)
    lr_schedule: Annotated[
        str, one_of("cosine", "linear", "constant_with_warmup", "warmup_stable_decay")
    ] = setting("cosine", "After the warm-up; the last is constant until it falls to 0.")
    warmup_steps: Natural = setting(0, "Steps in which the learning rate rises from 0.")
    decay_steps: Natural = setting(0, "Last steps, in which warmup_stable_decay falls.")
    max_grad_norm: Annotated[Number, Field(gt=0)] = setting(
        1.0, "Norm that the gradients are clipped to."
    )
    training: Annotated[dict[str, Any], Must("a mapping of fields and values")] = setting(
        {},
        "Any other field of `transformers.TrainingArguments`: `report_to`, "
        "`gradient_accumulation_steps`, `gradient_checkpointing`, ...",
    )

    @model_validator(mode="after")
    def _decay_belongs_to_its_schedule(self) -> Training:
        if (self.lr_schedule == "warmup_stable_decay") != (self.decay_steps > 0):
            raise ValueError(
                f"decay_steps: got {self.decay_steps} with lr_schedule {self.lr_schedule!r}, "
                "expected more than 0 with 'warmup_stable_decay' and 0 with others"
            )
        return self


class Evaluation(Settings):
    """Evaluation: which accuracy, on what."""

    evaluate: Annotated[str, one_of("seen", "all")] = setting(
        "seen", "Tasks that are evaluated at a task boundary: those seen so far, or all."
    )
    probes: list[Positive] = setting(
        [], "Steps after which all tasks are evaluated too, beside task boundaries."
    )
    held_out: Positive | None = setting(
        400,
        "Examples that a task is evaluated on; null: all, as with `data` unless given.",
        SHARED | COLUMN,
    )
    boundary_held_out: Positive | None = setting(
        None, "Of those, how many before the last boundary; null: all.", SHARED
    )
    accuracy: Annotated[str, one_of("micro", "macro")] = setting(
        "micro",
        "The share of examples, or the mean over the answers (held-out examples are then balanced "
        "over the answers as far as they go).",
        SHARED,
    )
    eval_batch_size: Positive = setting(32, "Examples per batch of an evaluation.", SHARED)
    forward_batches: Natural = setting(
        0, "Candidate batches to time in a plain forward with loss, to compare with.", VARIES
    )


class RunConfig(Evaluation, Training, Model, Scoring, Selection, Stream, Folder):
    """What `oasis train` runs. Every setting can be in the YAML file or given as `key=value`."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_paper(cls, values: Any) -> Any:
        """What is not given is as the paper has it."""
        name = _named(values, MODELS)
        return values if name is None else {**paper.settings(name), **values}

    @classmethod
    def load(
        cls,
        path: str | Path,
        overrides: Sequence[str] = (),
        given: Mapping[str, Any] = MappingProxyType({}),
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
            return cls.put_together(settings, overrides, given)

    @classmethod
    def put_together(
        cls, settings: Mapping[str, Any], overrides: Sequence[str], given: Mapping[str, Any]
    ) -> RunConfig:
        """`settings` with overrides and what is `given`; "data" of that is only where rows are."""
        changed = override(settings, overrides)
        data = changed.get("data")
        if isinstance(data, dict) and "data" in given:
            given = {**given, "data": {**data, "path": given["data"]}}
        return cls.from_mapping({**changed, **given})


def difference(config: RunConfig, saved: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """(setting, value, saved value), the first that makes a saved run another run, or None.

    A setting that was not saved, since it did not exist yet, counts as having had its default.
    """
    free, defaults = names(RunConfig, FREE), RunConfig().model_dump()
    for name, value in config.model_dump().items():
        before = saved.get(name, defaults[name])
        if name not in free and before != value:
            return name, value, before
    return None
