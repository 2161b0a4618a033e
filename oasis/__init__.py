"""oasis: online selection of the few samples worth training on."""

from oasis import starting as _starting  # before what takes time

with _starting.Interruptible(_starting.is_command()):
    from importlib.metadata import version as _version

    import torch as _torch  # noqa: F401  (before the core: both must share one OpenMP runtime)

    from oasis.gram import HeadGram, grad_gram, head_gram, merge
    from oasis.selection import (
        PRESETS,
        Preset,
        Selection,
        Selector,
        SirenResult,
        select,
        siren,
        threshold,
    )

__version__ = _version("oasis-select")

__all__ = [
    "PRESETS",
    "HeadGram",
    "Preset",
    "Selection",
    "Selector",
    "SirenResult",
    "grad_gram",
    "head_gram",
    "merge",
    "select",
    "siren",
    "threshold",
]
