"""The setting `data`: where rows are, what their fields mean, how they become tasks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataSettings:
    """A file name is short for `{path: NAME}`; several files are several tasks.

    Args:
        path: files (.jsonl, .json, .csv, .tsv, .parquet), folders of `save_to_disk` or hub names.
        test: the same of held-out rows, one for each path or one for all; null: `test_share` of the
            rows of each task are held out, the same ones whatever their order, equal rows together.
        test_share: in [0, 1).
        task: the field whose values are the tasks (null: each path is a task).
        prompt, completion: the fields of question and answer; or
        messages: the field of turns; or
        text: the field of a text to be learnt as a whole. Null: found by their usual names.
        answers: the closed set of answers, by which a task is judged; null: found where there are a
            few short ones, again and again; []: free text.
        chat: see `oasis.lab.data.own.tokens.encode_sample`.
        split, subset, streaming: of a folder or hub name, see `oasis.lab.data.own.rows.read_rows`.
        rows: at most so many of each path are read (null: all).
    """

    path: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    test_share: float = 0.1
    task: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: str | None = None
    text: str | None = None
    answers: tuple[str, ...] | None = None
    chat: bool | None = None
    split: str = "train"
    subset: str | None = None
    streaming: bool = False
    rows: int | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("data: got no path, expected at least one file")
        if len(self.test) not in (0, 1, len(self.path)):
            raise ValueError(
                f"data.test: got {len(self.test)} files, expected one or one for each of the "
                f"{len(self.path)} paths"
            )
        if len(self.test) == 1 < len(self.path) and self.task is None:
            raise ValueError(
                "data.test: got one file for several paths, expected one for each, or a field that "
                "names the tasks (data.task)"
            )
        if not 0 <= self.test_share < 1:
            raise ValueError(f"data.test_share: got {self.test_share}, expected a share in [0, 1)")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"data.rows: got {self.rows}, expected at least 1")
        if len(set(self.path)) != len(self.path):
            raise ValueError(f"data.path: got {list(self.path)}, expected each file once")

    @classmethod
    def parse(cls, value: Any) -> DataSettings:
        """Settings of a file name, a list of them, or a mapping. ValueError naming the key."""
        given = dict(value) if isinstance(value, Mapping) else {"path": value}
        known = {spec.name: spec.type for spec in dataclasses.fields(cls)}
        for key, item in given.items():
            if key not in known:
                raise ValueError(f"data.{key}: unknown, expected one of {', '.join(known)}")
            given[key] = _checked(key, item, known[key])
        return cls(**given)

    def told(self) -> dict[str, Any]:
        """The settings as a file of settings has them: lists for tuples, defaults left out."""
        values = {
            spec.name: getattr(self, spec.name)
            for spec in dataclasses.fields(self)
            if getattr(self, spec.name) != spec.default
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


def _checked(key: str, value: Any, hint: str) -> Any:
    if hint.startswith("tuple"):
        if value is None and "None" in hint:
            return None
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) for t in texts):
            raise ValueError(f"data.{key}: got {value!r}, expected a text or a list of them")
        home = key in ("path", "test")
        return tuple(os.path.expanduser(text) if home else text for text in texts)
    kinds: tuple[type, ...] = {"float": (int, float), "bool": (bool,), "int": (int,)}.get(
        hint.split(" ")[0], (str,)
    )
    if value is None and "None" in hint:
        return None
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"data.{key}: got {value!r}, expected {hint}")
    return value
