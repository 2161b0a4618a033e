"""How much a command says, and that what it says suits where it goes."""

from __future__ import annotations

import logging
import sys


def set_up(quiet: bool = False, verbose: bool = False) -> None:
    """Bars of libraries only on a terminal, where their carriage returns mean something; warnings
    as they come, with `verbose` notes too, with `quiet` neither.
    """
    import datasets
    import transformers

    level = logging.ERROR if quiet else logging.INFO if verbose else logging.WARNING
    transformers.logging.set_verbosity(level)
    datasets.logging.set_verbosity(level)
    logging.getLogger("oasis").setLevel(level)
    if quiet or not sys.stderr.isatty():
        transformers.logging.disable_progress_bar()
        datasets.disable_progress_bars()
