"""The library of operators: how one is defined, and its implementations registered.

The compiled core takes raw addresses. They are hidden inside opaque operators, so that tracing and
fake tensors never see one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

# Not torch.library.custom_op: its first call imports the compiler stack, seconds of it.
_library = torch.library.Library("oasis", "DEF")


def define(schema: str) -> None:
    """A new operator by its schema."""
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def fake(name: str) -> Callable[[Function], Function]:
    """Registers a function as what `name` gives for fake tensors: shapes and types alone.

    torch also takes it where one tensor of several is on "meta": what it makes then has no numbers,
    whatever device it says, so tensors on several devices are refused.
    """

    def register(function: Function) -> Function:
        @wraps(function)
        def checked(*arguments: Any, **named: Any) -> Any:
            _check_one_device((*arguments, *named.values()))
            return function(*arguments, **named)

        torch.library.register_fake(f"oasis::{name}", checked, lib=_library)
        return function

    return register


def _check_one_device(arguments: Sequence[Any]) -> None:
    lists = (a if isinstance(a, (list, tuple)) else (a,) for a in arguments)
    devices = {str(t.device) for each in lists for t in each if isinstance(t, Tensor)}
    if len(devices) > 1:
        got = ", ".join(sorted(devices))
        raise ValueError(f"got tensors on the devices {got}, expected one")


def implement(name: str, *keys: str) -> Callable[[Function], Function]:
    """Registers a function as the implementation of `name` for dispatch keys "CPU", "CUDA"."""

    def register(function: Function) -> Function:
        for key in keys:
            _library.impl(name, function, key)
        return function

    return register
