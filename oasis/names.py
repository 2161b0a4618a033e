"""The names and layouts that C++, CUDA and Python share (csrc/include/oasis/names.def)."""

from __future__ import annotations

from enum import IntEnum

from oasis import _core

_NAMES: dict[str, tuple] = _core.NAMES

DTYPES: tuple[str, ...] = _NAMES["dtype"]
RULES: tuple[str, ...] = _NAMES["rule"]
SCALES: tuple[str, ...] = _NAMES["scale"]
DRAWS: tuple[str, ...] = _NAMES["draw"]
RECURSIONS: tuple[str, ...] = _NAMES["recursion"]

# Positions in the two state buffers of a Selector.
Statistic = IntEnum("Statistic", _NAMES["statistic"], start=0)
Counter = IntEnum("Counter", _NAMES["counter"], start=0)

# Of an ORIS step, in the order of the packed numbers: name -> "number", "count", or what it names.
OPTIONS: dict[str, str] = dict(_NAMES["option"])


def check_name(kind: str, value, argument: str | None = None, more: tuple[str, ...] = ()) -> str:
    """`value`, one of the names of a kind ("rule", "scale", ...) or of `more`.

    Raises:
        ValueError: naming the argument (default: the kind).
    """
    known = (*_NAMES[kind], *more)
    if value not in known:
        raise ValueError(f"{argument or kind}: got {value!r}, expected one of {', '.join(known)}")
    return value


def pack(**options) -> list[float]:
    """The options of an ORIS step as the operators take them: numbers, a name as its position."""
    return [
        float(_NAMES[kind].index(check_name(kind, options[name])))
        if kind in _NAMES
        else float(options[name])
        for name, kind in OPTIONS.items()
    ]
