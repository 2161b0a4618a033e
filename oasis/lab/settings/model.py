"""The base of all settings, and what is said of a setting beside its type: help and scope."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oasis.lab.settings.errors import in_one_line, unknown
from oasis.train import atomic

S = TypeVar("S", bound="Settings")


class Scope(enum.Flag):
    """What else a setting is, that some of the commands go by."""

    NOTHING = 0
    NAME = enum.auto()  # says what the run is called, not what it does
    FREE = enum.auto()  # a resumed run may change it without becoming another run
    SHARED = enum.auto()  # a workspace is built from it; runs that share one agree on it
    PER_TASK = enum.auto()  # a list of one value per task, permuted along with the tasks
    VARIES = enum.auto()  # tells the variants of one comparison apart, or changes no result
    COLUMN = enum.auto()  # has a column in the table of runs


def setting(default: Any, help: str, scope: Scope = Scope.NOTHING, in_grid: str = "") -> Any:
    """A setting with its default. `in_grid` is set where a grid decides it, and says by what."""
    extra = {"scope": scope, "in_grid": in_grid}
    return Field(default, description=help, json_schema_extra=extra)


class Settings(BaseModel):
    """Settings, checked as they are made; errors are `WrongSetting`, in one line."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise in_one_line(type(self), error) from None

    @classmethod
    def from_mapping(cls: type[S], settings: Mapping[Any, Any]) -> S:
        """Settings of `settings`; an unknown key is an error that names the nearest known one."""
        for key in settings:
            if not isinstance(key, str):
                raise unknown(str(key), key, cls.model_fields)
        return cls(**settings)

    def replace(self: S, **changes: Any) -> S:
        """A copy with some settings changed, checked again."""
        return type(self)(**{**dict(self), **changes})

    def save(self, path: Path) -> None:
        """Write all settings as YAML; the folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True))


def names(model: type[Settings], scope: Scope) -> frozenset[str]:
    """The settings that have any of `scope`."""
    return frozenset(name for name, extra in _extras(model) if extra["scope"] & scope)


def in_grid(model: type[Settings]) -> dict[str, str]:
    """The settings that a grid decides, and by what."""
    return {name: extra["in_grid"] for name, extra in _extras(model) if extra["in_grid"]}


def _extras(model: type[Settings]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict), f"{name}: made without `setting`"
        yield name, extra
