"""The names and layouts that C++, CUDA and Python share (csrc/include/oasis/names.def)."""

from __future__ import annotations

from typing import Any

from oasis import _core

# Label of a position that carries no loss, the convention of torch and transformers.
IGNORED = -100

_NAMES: dict[str, tuple[Any, ...]] = _core.NAMES

DTYPES: tuple[str, ...] = _NAMES["dtype"]
RULES: tuple[str, ...] = _NAMES["rule"]
SCALES: tuple[str, ...] = _NAMES["scale"]
DRAWS: tuple[str, ...] = _NAMES["draw"]
RECURSIONS: tuple[str, ...] = _NAMES["recursion"]

# Codes by name of what is wrong with a batch by its numbers; 0 is nothing.
WRONGS: dict[str, int] = {name: at for at, name in enumerate(_NAMES["wrong"])}

# Positions by name in the two state buffers of a Selector.
STATISTICS: dict[str, int] = {name: at for at, name in enumerate(_NAMES["statistic"])}
COUNTERS: dict[str, int] = {name: at for at, name in enumerate(_NAMES["counter"])}

# Of an ORIS step, in the order of the packed numbers: name -> "number", "count", or what it names.
OPTIONS: dict[str, str] = dict(_NAMES["option"])


def check_name(
    kind: str, value: object, argument: str | None = None, more: tuple[str, ...] = ()
) -> str:
    """`value`, one of the names of a kind ("rule", "scale", ...) or of `more`.

    Raises:
        ValueError: naming the argument (default: the kind).
    """
    known = (*_NAMES[kind], *more)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{argument or kind}: got {value!r}, expected one of {', '.join(known)}")
    return value


def pack(**options: float | str) -> list[float]:
    """The options of an ORIS step as the operators take them: numbers, a name as its position."""
    return [
        float(_NAMES[kind].index(check_name(kind, options[name])))
        if kind in _NAMES
        else float(options[name])
        for name, kind in OPTIONS.items()
    ]
