"""Read run directories and draw them as one self-contained HTML page.

>>> from oasis import report
>>> report.write(["runs/demo"], out="report.html")      # doctest: +SKIP
"""

from oasis.report.html import write
from oasis.report.runs import Run, find

__all__ = ["Run", "find", "write"]
