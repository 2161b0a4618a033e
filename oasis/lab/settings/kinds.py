"""The kinds of values that settings take, each with its limits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from oasis.lab.names import LONGEST, is_folder_name

MOST = 1 << 31  # of any number that counts something, steps and rows among them
SEEDS = 1 << 32  # NumPy and scikit-learn take no more


@dataclass(frozen=True)
class Must:
    """What a value has to be beside its type: in words, and as a test."""

    takes: str
    test: Callable[[Any], bool] = lambda value: True

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not self.test(value):
            raise PydanticCustomError("must", "not so")
        return value


def one_of(*choices: str) -> Must:
    return Must(f"one of {', '.join(choices)}", choices.__contains__)


def plain_text(value: Any) -> Any:
    """`value`; ValueError for a text that no file can be called, and no record hold."""
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"got {value!r}, expected a text without NUL and surrogates")
    return value


def expand(value: Any) -> Any:
    """`value` with the home folder for a `~` at the beginning, and environment variables."""

    def known(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ValueError(f"got {value!r}, but the environment has no variable {name}")
        return os.environ[name]

    if not isinstance(value, str):
        return value
    return re.sub(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))", known, os.path.expanduser(value))


def _number(value: Any) -> Any:
    """YAML 1.1 reads 5e-4 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _items(value: Any) -> Any:
    """`a,b` on the command line is a list."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Natural = Annotated[int, Field(ge=0, lt=MOST)]
Positive = Annotated[int, Field(ge=1, lt=MOST)]
Number = Annotated[float, BeforeValidator(_number)]
Share = Annotated[Number, Field(gt=0, le=1)]
Text = Annotated[str, BeforeValidator(plain_text)]
PathText = Annotated[
    str,
    BeforeValidator(plain_text),
    BeforeValidator(expand),
    Must("a path, `~` and `${NAME}` expanded"),
]
ModelName = Annotated[PathText, Must("'smollm2', a folder, or a name on the hub", bool)]
Texts = Annotated[
    list[Text],
    BeforeValidator(_items),
    Must("a list of texts, each once", lambda v: len(v) == len(set(v))),
]
Paths = Annotated[
    list[PathText],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Must("a path or a list of paths, each once", lambda v: len(v) == len(set(v))),
]
FolderName = Annotated[
    Text, Must(f"a plain folder name of at most {LONGEST} bytes", is_folder_name)
]
