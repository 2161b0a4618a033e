"""What a configuration names is looked for before anything is loaded, downloaded or written."""

from __future__ import annotations

import os
from pathlib import Path

from oasis import policies
from oasis.lab import strict_yaml
from oasis.lab.config import RunConfig
from oasis.lab.data import tasks
from oasis.lab.data.own.scenario import parts_of
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.record import manifest
from oasis.lab.record.log import ADAPTER, CONFIG
from oasis.lab.settings.selection import Scoring

# A folder with a tokenizer has one of them; whether it is a good one shows when it is loaded.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json"),
    *("vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
)


def check(config: RunConfig) -> None:
    """ValueError, naming the setting, for what this machine or this process does not have."""
    choose_dtype(config.dtype, choose_device(config.device))
    check_model(config.model)
    if config.score_with is not None:
        check_model(config.score_with, "score_with")
    check_start(config)
    check_tasks(config)
    if config.training:
        from oasis.lab import arguments  # imports transformers, which takes seconds

        arguments.check(config)
    try:
        policy = policies.create(config.policy, config.ratio, config.seed, **config.policy_options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy_options: {error}") from error
    if not policy.needs:
        check_scores_nothing(config)


def check_scores_nothing(config: RunConfig) -> None:
    """No setting is there for the scoring of a policy that does none. (What else the trainer
    refuses it says itself, `oasis.lab.trainer.prepare`: for that there has to be a model.)
    """
    for name, field in Scoring.model_fields.items():
        if (value := getattr(config, name)) != field.default:
            raise ValueError(
                f"{name}: got {value!r}, but the policy {config.policy!r} scores nothing; in a "
                "comparison set it in the `run` of the policies that do"
            )


def check_tasks(config: RunConfig) -> None:
    if config.data is not None:
        check_data(config)
        return
    for setting, names in (("tasks", config.tasks), ("off_task", [config.off_task])):
        for name in names:
            if name is not None and name not in tasks.SOURCES:
                expected = ", ".join(sorted(tasks.SOURCES))
                raise ValueError(f"{setting}: got {name!r}, expected some of {expected}")


def check_data(config: RunConfig) -> None:
    """Files are there, and can be ones of rows."""
    settings = config.data
    assert settings is not None  # else these are packaged tasks
    if config.benchmark is not None:
        for name in settings.path:
            if not Path(name).is_dir():
                raise FileNotFoundError(
                    f"data: no folder {name}, expected that of {config.benchmark}"
                )
        return
    parts_of(settings)


def check_model(name: str, setting: str = "model") -> None:
    """A folder has a tokenizer, and what looks like a folder is one."""
    folder = Path(name)
    if folder.is_dir():
        if not any((folder / file).exists() for file in TOKENIZER_FILES):
            raise ValueError(
                f"{setting}: the folder {name} has no tokenizer "
                f"({', '.join(TOKENIZER_FILES[:3])}); save one there with tokenizer.save_pretrained"
            )
    elif os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
        raise ValueError(
            f"{setting}: no folder {name}; expected 'smollm2', a folder with a model, or a name on "
            "the Hugging Face hub"
        )


def check_start(config: RunConfig) -> None:
    """The run to start from is finished, whole, and of the same model."""
    if config.start is None:
        return
    folder = Path(config.start)
    content = manifest.read(folder / ADAPTER)
    if content is None:
        raise FileNotFoundError(f"start: {folder} has no {ADAPTER}; expected a finished run")
    if (what := manifest.damage(folder / ADAPTER, content)) is not None:
        raise ValueError(f"start: {what}")
    saved = strict_yaml.read(folder / CONFIG)
    model = saved.get("model") if isinstance(saved, dict) else None
    if model != config.model:
        raise ValueError(f"start: the run {folder} is of the model {model!r}, not {config.model!r}")
