"""Select rows of a file without training: one pass, scored by a model's forward."""

from oasis.lab.select.run import Outcome, select
from oasis.lab.select.settings import SelectSettings

__all__ = ["Outcome", "SelectSettings", "select"]
