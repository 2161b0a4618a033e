"""Entry point of the command `oasis`. The commands themselves are in `oasis.commands`.

This module needs nothing beyond the core, so that `oasis doctor` can say what is missing on an
installation without the extra `[train]`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oasis import starting

HELP = """Train on the few samples worth training on.

oasis doctor     what is installed and works
oasis --version  the version
oasis train, select, adapt, demo, compare, report, init: {}
                 {}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (`argv` without the program's name; default: the process's own).

    Returns the exit status: 0 fine, 1 failed, 2 for what the user can put right (an unknown
    option or setting, a missing file, a missing extra), 130 interrupted.
    """
    with starting.Interruptible(command=True):
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(argv: list[str]) -> int:
    from oasis.extra import from_extra

    try:
        from oasis.commands import app
    except ModuleNotFoundError as error:
        if not from_extra(error):
            raise
        return _without_extra(argv)
    try:
        app(args=argv, prog_name="oasis")
    except SystemExit as stop:  # click ends every command this way
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return stop.code or 0
    return 0


def _without_extra(argv: list[str]) -> int:
    from oasis.extra import MISSING_EXTRA

    if argv == ["doctor"]:
        from oasis import doctor

        return doctor.main()
    if argv in (["--help"], ["-h"]):
        print(HELP.format(*MISSING_EXTRA.split(": ")))
        return 0
    if argv == ["--version"]:
        from oasis import __version__

        print(f"oasis {__version__}")
        return 0
    command = " ".join(["oasis", *argv[:1]])
    print(f"{command} {MISSING_EXTRA} (`oasis doctor` works without it)", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
