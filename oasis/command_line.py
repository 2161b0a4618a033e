"""What the commands of `oasis` share: options, and how they end where something is wrong."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from oasis import starting
from oasis.extra import MISSING_EXTRA, from_extra

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value]...", help="Settings that replace those of the file."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Results and errors alone.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Notes of the libraries too.")]


def fail(message: object, status: int = 2) -> NoReturn:
    """Print one red line on standard error and end with `status`."""
    line = " ".join(str(message).split())
    # A console of its own each time: standard error may have been redirected since.
    Console(stderr=True).print(f"[red]error:[/red] {escape(line)}", soft_wrap=True, highlight=False)
    raise typer.Exit(status)


def say(quiet: bool, message: str) -> None:
    """A sign of life, before anything that takes long."""
    if not quiet:
        print(f"oasis: {message}", file=sys.stderr, flush=True)


def meant_for_the_user(error: BaseException) -> bool:
    """Whether `error` comes from `oasis` itself, whose ValueErrors name the setting, what was got
    and what is expected. Those of a library are faults, with a traceback."""
    last = error.__traceback__
    assert last is not None  # it was raised
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "oasis"


def set_up(quiet: bool = False, verbose: bool = False) -> None:
    """Have libraries say as much as the command is asked to, see `oasis.lab.screen`."""
    with one_line():
        from oasis.lab import screen

        screen.set_up(quiet, verbose)


# The machine's fault, not the user's: status 1.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


@contextmanager
def running(interrupted: str) -> Iterator[None]:
    """One line instead of a traceback for what goes wrong in a run and the user can put right."""
    from oasis.lab.data.assets import AssetError

    try:
        # OSError: no such model, a folder in use, no space left on the device.
        with one_line(AssetError, OSError):
            yield
    except ValueError as error:
        if not meant_for_the_user(error):
            raise
        fail(error)
    except KeyboardInterrupt as stop:
        print(file=sys.stderr)  # leaves the line of the progress bar
        fail(interrupted, starting.status(stop))


@contextmanager
def one_line(*errors: type[BaseException]) -> Iterator[None]:
    """Turn `errors`, and a missing extra, into one line for the user without a traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not from_extra(error):
            raise
        fail(f"{error.name} is not installed; this command {MISSING_EXTRA}")
    except errors as error:
        status = 1 if isinstance(error, OSError) and error.errno in DISK else 2
        if isinstance(error, OSError) and error.strerror:
            named = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            fail(named, status)
        fail(error, status)
