"""The library of operators: how one is defined, and its implementations registered.

The compiled core takes raw addresses. They are hidden inside opaque operators, so that tracing and
fake tensors never see one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Not torch.library.custom_op: its first call imports the compiler stack, seconds of it.
_library = torch.library.Library("oasis", "DEF")


def define(schema: str) -> None:
    """A new operator by its schema."""
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def fake(name: str) -> Callable:
    """Registers a function as what `name` gives for fake tensors: shapes and types alone."""
    return torch.library.register_fake(f"oasis::{name}", lib=_library)


def implement(name: str, *keys: str) -> Callable:
    """Registers a function as the implementation of `name` for dispatch keys "CPU", "CUDA"."""

    def register(function: Callable) -> Callable:
        for key in keys:
            _library.impl(name, function, key)
        return function

    return register
