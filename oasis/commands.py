"""The commands of `oasis`, one function each. Heavy imports wait inside them."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from oasis.extra import MISSING_EXTRA, from_extra

if TYPE_CHECKING:
    from oasis.lab.compare import Grid
    from oasis.lab.compare.config import Cell
    from oasis.lab.settings import Settings

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value]...", help="Settings that replace those of the file."),
]

app = typer.Typer(
    name="oasis",
    help="Train on the few samples worth training on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)


def fail(message: object, status: int = 2) -> NoReturn:
    """Print one red line on standard error and end with `status`."""
    line = " ".join(str(message).split())
    # A console of its own each time: standard error may have been redirected since.
    Console(stderr=True).print(f"[red]error:[/red] {escape(line)}", soft_wrap=True, highlight=False)
    raise typer.Exit(status)


def meant_for_the_user(error: BaseException) -> bool:
    """Whether `error` comes from `oasis` itself, whose ValueErrors name the setting, what was got
    and what is expected. Those of a library are faults, with a traceback."""
    last = error.__traceback__
    assert last is not None, "only of an error that was raised"
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "oasis"


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
    except KeyboardInterrupt:
        print(file=sys.stderr)  # leaves the line of the progress bar
        fail(interrupted, 130)


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


def _version(show: bool) -> None:
    if show:
        from oasis import __version__

        print(f"oasis {__version__}")
        raise typer.Exit


@app.callback()
def oasis(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _settings_of_runs(show: bool) -> None:
    if show:
        from oasis.lab.config import RunConfig

        _print_settings(RunConfig)


def _settings_of_grids(show: bool) -> None:
    if show:
        from oasis.lab.compare.config import Entry, Grid

        _print_settings(Grid, Entry)


def _print_settings(*models: type[Settings]) -> None:
    from oasis.lab.settings.reference import text

    print("\n\n".join(map(text, models)))
    raise typer.Exit


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Settings of the run.")],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run of the same name.")
    ] = False,
    help_settings: Annotated[
        bool,
        typer.Option(
            "--help-settings", callback=_settings_of_runs, is_eager=True, help="List all settings."
        ),
    ] = False,
) -> None:
    """Train a language model on a stream of tasks, on the samples that a policy selects."""
    with one_line():
        from oasis.lab import preflight, strict_yaml
        from oasis.lab.config import RunConfig
    changes = [*(overrides or ()), *(["resume=true"] if resume else ())]
    with one_line(ValueError, TypeError, OSError):
        settings = RunConfig.load(config, changes)
        with strict_yaml.located(config, changes):
            preflight.check(settings)
    with one_line():
        from oasis.lab.run import run
    if (settings.directory / "events.jsonl").exists() and not (settings.resume or overwrite):
        fail(
            f"{settings.directory} holds a run already: --resume goes on with it, --overwrite "
            "replaces it, name=NAME makes another"
        )
    hint = "; --resume goes on from its last checkpoint" if settings.save_steps else ""
    with running(f"interrupted; {settings.directory} keeps what was done{hint}"):
        result = run(settings)
    if result.a_last is not None and result.a_avg is not None:
        print(f"A_last {100 * result.a_last:.1f} %, A_avg {100 * result.a_avg:.1f} %")
    taken = f"trained on {result.selected} of {result.candidates} samples"
    print(f"{taken} ({100 * result.ratio:.2f} %) in {result.seconds:.0f} s")
    print(f"draw it with: oasis report {settings.directory}")


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the runs and report.html.")
    ] = Path("runs/demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A fraction of the stream, to see that it all works.")
    ] = False,
) -> None:
    """Train a small real language model on real tasks with a quarter of the data, and compare.

    Policies: oasis, random and full. A few minutes on two CPU cores; downloads about 135 MB once.
    """
    with one_line():
        from oasis.lab.demo import demo
    with running(f"interrupted; {out} keeps what was done"):
        demo(out=out, quick=quick)


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The grid of runs.")],
    overrides: Overrides = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs side by side; else the file's.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Runs of this label alone (repeatable).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and what is on disk of each.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace runs whose settings have changed.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Tables and report.html at the end.")
    ] = True,
    help_settings: Annotated[
        bool,
        typer.Option(
            "--help-settings", callback=_settings_of_grids, is_eager=True, help="List all settings."
        ),
    ] = False,
) -> None:
    """Run policies x ratios x seeds x task orders side by side, and compare them.

    Finished runs are not repeated; killed ones go on from their last checkpoint (every 50 steps,
    unless `run.save_steps` says otherwise).
    """
    with one_line():
        from oasis.lab import strict_yaml
        from oasis.lab.compare import Grid, runner
    with one_line(ValueError, TypeError, OSError):
        grid = Grid.load(config, overrides or ())
        with strict_yaml.located(config, overrides or ()):
            grid.check()
        cells = runner.plan(grid, only or ())
        if not overwrite:
            runner.refuse_changed(cells)
    if dry_run:
        from oasis.lab.compare.state import damaged, state

        for cell in cells:
            print(f"{cell.name}: {damaged(cell.config) or state(cell.config)}")
        print(f"{len(cells)} runs")
        return
    with running(f"interrupted; {grid.out} keeps what was done, the same command goes on with it"):
        done = runner.compare(grid, workers=workers, only=only or (), overwrite=overwrite)
    if report and done.finished:
        _report_of(grid, runner.plan(grid))
    for cell, message in done.failed:
        print(f"failed: {cell.name}: {message}", file=sys.stderr)
    if done.failed:
        raise typer.Exit(1)


def _report_of(grid: Grid, cells: list[Cell]) -> None:
    """Tables and page of the runs of the grid that are on disk with its settings."""
    from oasis.lab.compare.state import changed, damaged
    from oasis.lab.report import comparison
    from oasis.lab.report.runs import load_all

    there = [cell for cell in cells if (cell.directory / "events.jsonl").exists()]
    sound = [cell for cell in there if damaged(cell.config) is None]  # the others are named already
    same = [cell for cell in sound if changed(cell.config) is None]
    if len(same) < len(sound):
        print(f"left out of the report: {len(sound) - len(same)} runs with other settings",
              file=sys.stderr)  # fmt: skip
    runs = load_all(cell.directory for cell in same)
    print(f"wrote {comparison.write(runs, Path(grid.out) / 'report.html', grid.name)}")


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run directories, or folders of them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
) -> None:
    """Draw runs, finished or not, as one self-contained HTML page.

    Of all runs of a comparison, more than five variants or several seeds, the page is that of a
    comparison, with figures/*.png and results.csv, results.parquet and results.json beside it.
    """
    with one_line():
        from oasis.lab import report
    with one_line(OSError, ValueError):
        folders = report.find(runs)
    with one_line(OSError, ValueError):
        print(f"wrote {report.write(folders, out)}")


@app.command()
def doctor() -> None:
    """Show versions, devices and backends, and check that the compiled core works."""
    from oasis import doctor

    raise typer.Exit(doctor.main())
