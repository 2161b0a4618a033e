"""The state of a Selector: what its buffers hold, and whether a saved one can be taken over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oasis.checks import check_buffer
from oasis.names import COUNTERS, STATISTICS
from oasis.selection.memory import WIDTH

ENTRIES = ("statistics", "counters", "memory", "_extra_state")
_KIND = "remembered"  # what the memory is of, beside the settings


def saved_state(
    state: Mapping[str, Tensor], prefix: str, settings: dict[str, Any]
) -> dict[str, Tensor]:
    """The entries of a Selector in `state`, checked, as copies; empty where there are none.

    `settings` are ratio and preset of the selector that is to take them over.

    Raises:
        TypeError, ValueError: naming the entry.
    """
    found = {name: state[prefix + name] for name in ENTRIES if prefix + name in state}
    if not found:
        return {}
    for name in ENTRIES:
        if name not in found:
            got = ", ".join(prefix + name for name in found)
            raise ValueError(
                f"state: got {got} without {prefix + name}, expected all of a selector"
            )
    for name, value in found.items():
        if not isinstance(value, Tensor) or value.device.type == "meta":
            got = str(value.device) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"state: {prefix + name}: got {got}, expected a tensor with numbers")
    kind = _check_settings(f"state: {prefix}_extra_state", found["_extra_state"], settings)
    statistics, counters = found["statistics"], found["counters"]
    name, shape = f"state: {prefix}statistics", (len(STATISTICS),)
    check_buffer(name, statistics, torch.float64, shape, statistics.device)
    _check_statistics(name, statistics.tolist(), settings["ratio"])
    name, shape = f"state: {prefix}counters", (len(COUNTERS),)
    check_buffer(name, counters, torch.int64, shape, statistics.device)
    _check_counters(name, counters.tolist())
    if settings["remember"] and counters[COUNTERS["selected"]] and not kind:
        raise ValueError(
            f"state: {prefix}_extra_state: got {_KIND} null, expected what the memory is of"
        )
    name, memory = f"state: {prefix}memory", found["memory"]
    check_buffer(name, memory, torch.float64, (settings["remember"], WIDTH), statistics.device)
    if not memory.isfinite().all():
        raise ValueError(f"{name}: got numbers that are not finite, expected sketches")
    # Copies, contiguous, no inference tensors: with assign=True they become the buffers.
    with torch.inference_mode(False):
        return {prefix + name: value.detach().contiguous().clone() for name, value in found.items()}


def settings_as_bytes(settings: dict[str, Any], kind: str | None) -> Tensor:
    """JSON in bytes: a state dict of tensors alone travels best. `kind` is what is remembered."""
    return torch.tensor(list(json.dumps({**settings, _KIND: kind}).encode()), dtype=torch.uint8)


def kind_of(state: Tensor) -> str | None:
    """What is remembered, of checked `settings_as_bytes`."""
    kind: str | None = json.loads(bytes(state.tolist()))[_KIND]
    return kind


def _check_settings(name: str, state: Tensor, settings: dict[str, Any]) -> str | None:
    """What is remembered, where the rest is `settings`."""
    # A threshold steered to one ratio, or statistics of one preset, mean nothing to another.
    check_buffer(name, state, torch.uint8, (state.numel(),), state.device)
    try:
        saved = dict(json.loads(bytes(state.tolist())))
    except (TypeError, ValueError):
        got = bytes(state[:40].tolist())
        raise ValueError(f"{name}: got {got!r}, expected ratio and preset as JSON") from None
    kind = saved.pop(_KIND, None)
    if not (kind is None or isinstance(kind, str) and settings["remember"]):
        raise ValueError(f"{name}: got {_KIND} {kind!r}, expected what a memory is of")
    for option in sorted(settings.keys() ^ saved.keys()):
        who = "this" if option in settings else "its"
        raise ValueError(
            f"{name}: saved by another version of oasis; only {who} selector has a setting "
            f"{option!r}"
        )
    for option, value in settings.items():
        if saved[option] != value:
            raise ValueError(
                f"{name}: saved with {option}={saved[option]!r}, expected {value!r} as in "
                "this selector; make one with the same ratio and preset"
            )
    return kind


def _check_statistics(name: str, values: list[float], ratio: float) -> None:
    for statistic, value in zip(STATISTICS, values, strict=True):
        if statistic != "threshold":
            good, expected = 0 <= value < float("inf"), "a finite number >= 0"
        elif ratio == 1:
            good, expected = value == -float("inf"), "-inf, as the ratio is 1"
        else:
            good, expected = abs(value) < float("inf"), "a finite number"
        if not good:
            raise ValueError(f"{name}: got {statistic} {value}, expected {expected}")


def _check_counters(name: str, values: list[int]) -> None:
    count = dict(zip(COUNTERS, values, strict=True))
    for counter, value in count.items():
        if value < 0:
            raise ValueError(f"{name}: got {counter} {value}, expected a count >= 0")
    for part, whole in (("selected", "candidates"), ("batches", "candidates")):
        if count[part] > count[whole]:
            raise ValueError(
                f"{name}: got {part} {count[part]}, expected at most {whole}, {count[whole]}"
            )
