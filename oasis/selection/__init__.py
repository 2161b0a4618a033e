"""Selection: SIREN takes redundancy out, ORIS judges what is left, a draw decides."""

from oasis.selection.one_batch import select
from oasis.selection.presets import PRESETS, Preset
from oasis.selection.redundancy import SirenResult, siren
from oasis.selection.selector import Selector
from oasis.selection.threshold import threshold
from oasis.selection.types import Selection

__all__ = [
    "PRESETS",
    "Preset",
    "Selection",
    "Selector",
    "SirenResult",
    "select",
    "siren",
    "threshold",
]
