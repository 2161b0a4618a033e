"""The state of a Selector: what its buffers hold, and whether a saved one can be taken over."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from oasis.checks import check_buffer
from oasis.names import Counter, Statistic

ENTRIES = ("statistics", "counters", "_extra_state")


def saved_state(state: Mapping[str, Tensor], prefix: str, settings: dict) -> dict[str, Tensor]:
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
            got = value.device if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"state: {prefix + name}: got {got}, expected a tensor with numbers")
    _check_settings(f"state: {prefix}_extra_state", found["_extra_state"], settings)
    statistics, counters = found["statistics"], found["counters"]
    name, shape = f"state: {prefix}statistics", (len(Statistic),)
    check_buffer(name, statistics, torch.float64, shape, statistics.device)
    _check_statistics(name, statistics.tolist(), settings["ratio"])
    name, shape = f"state: {prefix}counters", (len(Counter),)
    check_buffer(name, counters, torch.int64, shape, statistics.device)
    _check_counters(name, counters.tolist())
    # Copies, and contiguous: with assign=True they become the buffers.
    return {prefix + name: value.detach().contiguous().clone() for name, value in found.items()}


def settings_as_bytes(settings: dict) -> Tensor:
    """JSON in bytes: a state dict of tensors alone travels best."""
    return torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)


def _check_settings(name: str, state: Tensor, settings: dict) -> None:
    # A threshold steered to one ratio, or statistics of one preset, mean nothing to another.
    check_buffer(name, state, torch.uint8, (state.numel(),), state.device)
    try:
        saved = dict(json.loads(bytes(state.tolist())))
    except (TypeError, ValueError):
        got = bytes(state[:40].tolist())
        raise ValueError(f"{name}: got {got!r}, expected ratio and preset as JSON") from None
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


def _check_statistics(name: str, values: list[float], ratio: float) -> None:
    for statistic, value in zip(Statistic, values, strict=True):
        if statistic is not Statistic.threshold:
            good, expected = 0 <= value < float("inf"), "a finite number >= 0"
        elif ratio == 1:
            good, expected = value == -float("inf"), "-inf, as the ratio is 1"
        else:
            good, expected = abs(value) < float("inf"), "a finite number"
        if not good:
            raise ValueError(f"{name}: got {statistic.name} {value}, expected {expected}")


def _check_counters(name: str, values: list[int]) -> None:
    count = dict(zip((counter.name for counter in Counter), values, strict=True))
    for counter, value in count.items():
        if value < 0:
            raise ValueError(f"{name}: got {counter} {value}, expected a count >= 0")
    for part, whole in (("selected", "candidates"), ("batches", "candidates")):
        if count[part] > count[whole]:
            raise ValueError(
                f"{name}: got {part} {count[part]}, expected at most {whole}, {count[whole]}"
            )
