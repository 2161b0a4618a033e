"""`oasis compare`: policies x ratios x seeds x task orders, run side by side and compared."""

from oasis.lab.compare.config import Cell, Grid
from oasis.lab.compare.runner import compare

__all__ = ["Cell", "Grid", "compare"]
