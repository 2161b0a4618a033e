"""Read run directories and draw them as one self-contained HTML page.

>>> from oasis.lab import report
>>> report.write(["runs/demo"], out="report.html")      # doctest: +SKIP
"""

from oasis.lab.report.folders import find
from oasis.lab.report.pages import write
from oasis.lab.report.runs import Run

__all__ = ["Run", "find", "write"]
