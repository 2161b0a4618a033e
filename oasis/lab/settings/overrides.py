"""`key=value` on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oasis.lab import strict_yaml


def override(settings: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`settings` with `key=value` applied; `policy_options.beta=0.9` reaches inside a mapping."""
    result = dict(settings)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"override: got {text!r}, expected key=value")
        try:
            parsed = strict_yaml.parse(value, key)
        except ValueError as error:
            raise ValueError(f"override: {text!r} is not valid YAML after '=': {error}") from error
        outer, dot, inner = key.partition(".")
        if dot:
            if not isinstance(result.get(outer, {}), dict):
                raise ValueError(f"override: {text!r}, but {outer} has no settings inside")
            result[outer] = {**result.get(outer, {}), inner: parsed}
        else:
            result[key] = parsed
    return result
