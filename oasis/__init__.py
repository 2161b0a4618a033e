"""oasis: online selection of the few samples worth training on."""

from importlib.metadata import version as _version

import torch as _torch  # noqa: F401  (before the core: both must share one OpenMP runtime)

from oasis.gram import HeadGram, grad_gram, head_gram, merge
from oasis.oris import PRESETS, Preset, threshold
from oasis.selector import Selection, Selector, select
from oasis.siren import SirenResult, siren

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
