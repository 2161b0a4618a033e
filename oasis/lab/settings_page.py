"""Makes docs/settings.md: `python -m oasis.lab.settings_page > docs/settings.md`."""

from __future__ import annotations

from oasis.lab.compare.config import Entry, Grid
from oasis.lab.config import RunConfig
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.settings.reference import tables

PAGE = """# Settings

This page is made from the code: `python -m oasis.lab.settings_page > docs/settings.md`.
`oasis train --help-settings` and `oasis compare --help-settings` print the same.

Settings are in a YAML file, and as `key=value` behind it on the command line; `run.rank=8` reaches
inside a mapping. In paths, `~` is the home folder and `${{NAME}}` an environment variable, which
has to be there. What cannot be used is refused in one line with file and line, before anything is
downloaded or written.

## Of a run

{run}

## Of your own rows

Inside `data` of a run ([data.md](data.md)); a file, or a list of files, is short for
`{{path: ...}}`.

{data}

## Of a comparison

`oasis compare` runs every entry of `policies` with every ratio, seed and order; `full` has ratio 1.
`base` in the file names another one, whose `run` holds here too but for what this one's `run` says.

{grid}

{entry}
"""


def page() -> str:
    """The text of the page."""
    data = tables(DataSettings)
    return PAGE.format(run=tables(RunConfig), data=data, grid=tables(Grid), entry=tables(Entry))


if __name__ == "__main__":
    print(page(), end="")
