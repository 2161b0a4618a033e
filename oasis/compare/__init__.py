"""`oasis compare`: policies x ratios x seeds x task orders, run side by side and compared."""

from oasis.compare.config import Cell, Grid
from oasis.compare.runner import compare

__all__ = ["Cell", "Grid", "compare"]
