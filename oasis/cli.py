"""Entry point of the command `oasis`. The commands themselves are in `oasis.commands`.

This module needs nothing beyond the core, so that `oasis doctor` can say what is missing on an
installation without the extra `[train]`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oasis.extra import MISSING_EXTRA, from_extra

HELP = f"""Train on the few samples worth training on.

oasis doctor     what is installed and works
oasis --version  the version
oasis train, select, adapt, demo, compare, report, init: {MISSING_EXTRA.partition(":")[0]}
                 {MISSING_EXTRA.partition(": ")[2]}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (`argv` without the program's name; default: the process's own).

    Returns the exit status: 0 fine, 1 failed, 2 for what the user can put right (an unknown
    option or setting, a missing file, a missing extra), 130 interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        from oasis.commands import app
    except ModuleNotFoundError as error:
        if not from_extra(error):
            raise
        return _without_extra(argv)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    try:
        app(args=argv, prog_name="oasis")
    except SystemExit as stop:  # click ends every command this way
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return stop.code or 0
    return 0


def _without_extra(argv: list[str]) -> int:
    if argv == ["doctor"]:
        from oasis import doctor

        return doctor.main()
    if argv in (["--help"], ["-h"]):
        print(HELP)
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
