"""What a setting takes, in words; pydantic's errors in one line: setting, got, expected."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from oasis.lab.settings.kinds import Must

LONGEST = 200  # characters of a value that an error shows
PLAIN = {
    str: "a text",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "a mapping with texts for keys",
}
LIMITS = (Ge, Gt, Le, Lt)


class WrongSetting(ValueError):
    """A setting that cannot be used; the message begins with its name."""


class WrongType(WrongSetting, TypeError):
    """A setting of another type. (Also a ValueError, since pydantic passes no other on.)"""


def takes(field: FieldInfo) -> str:
    """What a setting takes: "an integer from 1, less than 2^31, or null"."""
    return _takes(field.annotation, field.metadata)


def _takes(annotation: Any, metadata: Sequence[Any]) -> str:
    for said in reversed(metadata):
        if isinstance(said, Must):
            return said.takes
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return _takes(inner, [*more, *metadata])
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        options = [_takes(option, []) for option in typing.get_args(annotation)]
        comma = "," if any("," in option for option in options) else ""
        return f"{comma} or ".join(options)
    if annotation in (int, float):
        return _range(annotation, [limit for limit in _flat(metadata) if type(limit) in LIMITS])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a mapping"
    return PLAIN.get(typing.get_origin(annotation) or annotation, str(annotation))


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    """A `Field(ge=..., lt=...)` inside Annotated carries its limits in its own metadata."""
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else [item]


def _range(kind: type, limits: Iterable[Any]) -> str:
    bounds = {type(limit): dataclasses.astuple(limit)[0] for limit in limits}
    low, high = bounds.get(Ge, bounds.get(Gt)), bounds.get(Le, bounds.get(Lt))
    if kind is int:
        text = "an integer" + ("" if low is None else f" from {low}")
        return text + ("" if high is None else f", less than {_power(high)}")
    if low is not None and high is not None:
        left, right = "[" if Ge in bounds else "(", "]" if Le in bounds else ")"
        return f"a number in {left}{low:g}, {high:g}{right}"
    if low is None:
        return "a number"
    return f"a number, {low:g} or more" if Ge in bounds else f"a number, more than {low:g}"


def _power(number: int) -> str:
    return f"2^{number.bit_length() - 1}" if number & (number - 1) == 0 else str(number)


def nearest(key: object, known: Iterable[str]) -> str:
    """`; the nearest is 'ratio'`, where there is one near."""
    near = difflib.get_close_matches(str(key), list(known), n=1)
    return f"; the nearest is {near[0]!r}" if near else ""


def unknown(name: str, key: object, known: Iterable[str]) -> WrongSetting:
    """The error for a setting that there is none of."""
    return WrongSetting(f"{name}: unknown setting{nearest(key, known)}")


def in_one_line(model: type[BaseModel], error: ValidationError) -> WrongSetting:
    """The first thing that is wrong; an unknown key before all others."""
    errors = error.errors()
    first = next((e for e in errors if e["type"] in ("extra_forbidden", "invalid_key")), errors[0])
    name, field, owner = _setting(model, first["loc"])
    if first["type"] in ("extra_forbidden", "invalid_key"):
        return unknown(name, first["loc"][-1], owner.model_fields)
    of_it = [e for e in errors if e["loc"][:1] == first["loc"][:1]]
    # Of a number that may also be a list, what is wrong with the number says more.
    first = next((e for e in of_it if not e["type"].endswith("_type")), first)
    return _message(name, field, first)


def _message(name: str, field: FieldInfo | None, error: Any) -> WrongSetting:
    inner = error.get("ctx", {}).get("error")
    if isinstance(inner, WrongSetting):  # of a part, by the name that it has there
        return type(inner)(f"{name}.{inner}" if name else str(inner))
    if inner is not None:
        return WrongSetting(f"{name}: {inner}" if name else str(inner))
    if error["type"] == "missing":
        return WrongSetting(f"{name}: not there, expected {takes(field) if field else 'a value'}")
    got = shown(error["input"])
    expected = f"expected {takes(field)}" if field else error["msg"]
    if error["type"].endswith("_type"):
        return WrongType(f"{name}: got {got} ({type(error['input']).__name__}), {expected}")
    return WrongSetting(f"{name}: got {got}, {expected}")


def shown(value: object) -> str:
    """`value` as an error shows it: in one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _setting(
    model: type[BaseModel], place: Sequence[int | str]
) -> tuple[str, FieldInfo | None, type[BaseModel]]:
    """`policies[1].ratios`, its field, and the model that has it, of where pydantic found it."""
    name, field, owner = "", None, model
    inside: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, str) and inside is not None:
            name, owner = f"{name}.{part}" if name else part, inside
            field = inside.model_fields.get(part)
            inside = _model_in(field.annotation) if field else None
        elif isinstance(part, int) and inside is not None:
            name += f"[{part}]"
    return name, field, owner


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
