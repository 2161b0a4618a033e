"""What the measurements on a real training run share: its trainer, and their command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from transformers import PrinterCallback

from oasis.lab import strict_yaml
from oasis.lab.arguments import plan, training_arguments
from oasis.lab.config import RunConfig
from oasis.lab.workspace import Workspace
from oasis.policies import Policy
from oasis.train import SelectionTrainer

Options = TypeVar("Options")


@contextmanager
def trainer_of(
    config: RunConfig,
    workspace: Workspace,
    policy: Policy,
    kind: type[SelectionTrainer] = SelectionTrainer,
    **arguments: Any,
) -> Iterator[SelectionTrainer]:
    """The trainer that `oasis.lab.run.run` would use, without evaluation or a record on disk.

    The workspace's model carries LoRA while this is open, and none afterwards.
    """
    stream = workspace.stream(config)
    steps, cpu = plan(config, stream).steps, workspace.device.type == "cpu"
    with workspace.lora(config) as model:
        trainer = kind(
            model=model,
            args=training_arguments(config, steps, cpu=cpu, progress=False),
            train_dataset=stream,
            data_collator=workspace.collator,
            processing_class=workspace.tokenizer,
            policy=policy,
            **arguments,
        )
        trainer.remove_callback(PrinterCallback)
        yield trainer


def parse(arguments: Sequence[str], options: type[Options]) -> tuple[RunConfig, Options]:
    """`CONFIG.yaml [key=value ...]`: fields of the dataclass `options`, else of `RunConfig`."""
    path, rest, chosen = split(arguments, options)
    return RunConfig.load(path, rest), chosen  # RunConfig says what is wrong with it, if anything


def split(arguments: Sequence[str], options: type[Options]) -> tuple[str, list[str], Options]:
    """`FILE.yaml [key=value ...]` as the file, what is not for `options`, and the options.

    Raises:
        ValueError: the value of an option is of another type than its default.
    """
    if not arguments:
        names = ", ".join(field.name for field in dataclasses.fields(options))
        raise SystemExit(f"expected FILE.yaml [key=value ...]; beside the file's settings: {names}")
    path, *overrides = arguments
    own = {field.name: field.default for field in dataclasses.fields(options)}
    chosen, rest = {}, []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or key not in own:
            rest.append(text)
            continue
        chosen[key] = strict_yaml.parse(value, key)
        if type(chosen[key]) is not type(own[key]):
            expected = type(own[key]).__name__
            raise ValueError(f"{key}: got {chosen[key]!r}, expected {expected}")
    return path, rest, options(**chosen)


def markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A titled Markdown table."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write(directory: Path, name: str, text: str, data: Any) -> None:
    """`name`.md and `name`.json in `directory`; the Markdown is printed too."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.md").write_text(text, encoding="utf-8")
    (directory / f"{name}.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    print(text)
    print(f"written to {directory}: {name}.md, {name}.json")
