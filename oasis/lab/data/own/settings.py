"""The setting `data`: where rows are, what their fields mean, how they become tasks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from oasis.lab.settings import Settings, WrongSetting, setting
from oasis.lab.settings.kinds import Must, Number, Paths, PathText, Positive, Text, Texts


class DataSettings(Settings):
    """Rows of your own: where they are, what their fields mean, how they become tasks."""

    path: Paths = setting(
        [],
        "Files (.jsonl, .json, .csv, .tsv, .parquet), folders of `save_to_disk` or hub names.",
    )
    client: Annotated[int | Text | None, Must("a number or text, or null")] = setting(
        None, "Of a scenario of several clients (COAST, Adapt), whose files to read."
    )
    test: Paths = setting(
        [],
        "The same of held-out rows, one for each path; none: `test_share` of each task's rows.",
    )
    test_share: Annotated[Number, Must("a number in [0, 1)", lambda share: 0 <= share < 1)] = (
        setting(0.1, "Share of a task's rows to hold out, the same ones whatever their order.")
    )
    task: Text | None = setting(
        None, "The field whose values are the tasks; null: each path is one."
    )
    prompt: Text | None = setting(None, "The field that asks; null: found by its usual names.")
    completion: Text | None = setting(None, "The field that answers.")
    messages: Text | None = setting(None, "The field of turns, in place of both.")
    text: Text | None = setting(None, "The field of a text to be learnt as a whole.")
    image: Text | None = setting(None, "The field of images; null: image, or images.")
    image_folder: PathText | None = setting(
        None, "The folder that paths of images are relative to; null: that of the file."
    )
    answers: Texts | None = setting(
        None,
        "The answers that a task is judged by; null: found where there are a few short ones, again "
        "and again; []: free text.",
    )
    chat: bool | None = setting(
        None,
        "Write pairs with the tokenizer's chat template too (true), turns without it (false); "
        "null: turns alone.",
    )
    split: Text = setting("train", "The part of a folder or hub name to read.")
    subset: Text | None = setting(None, "The configuration of a hub name, if it has several.")
    streaming: bool = setting(False, "Read from the hub as rows come, not all of them first.")
    rows: Positive | None = setting(None, "At most so many rows of each path; null: all.")

    @model_validator(mode="after")
    def _agrees(self) -> DataSettings:
        if not self.path:
            raise WrongSetting("path: got [], expected at least one file")
        if len(self.test) not in (0, 1, len(self.path)):
            raise WrongSetting(
                f"test: got {len(self.test)} files, expected one or one for each of the "
                f"{len(self.path)} paths"
            )
        if len(self.test) == 1 < len(self.path) and self.task is None:
            raise WrongSetting(
                "test: got one file for several paths, expected one for each, or a field that "
                "names the tasks (data.task)"
            )
        return self


def _short(value: Any) -> Any:
    """A name or a list of them is short for a mapping with that as "path"."""
    return {"path": value} if isinstance(value, (str, list)) else value


Data = Annotated[
    DataSettings,
    BeforeValidator(_short),
    Must("a file, a list of files, or a mapping ([data.md](data.md))"),
]
