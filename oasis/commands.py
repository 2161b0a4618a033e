"""The commands of `oasis`, one function each. Heavy imports wait inside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import typer.core

from oasis import starting
from oasis.adapt_command import adapt
from oasis.command_line import Overrides, Quiet, Verbose, fail, one_line, running, say, set_up
from oasis.doctor_command import doctor
from oasis.select_command import select

if TYPE_CHECKING:
    from oasis.lab.compare import Grid
    from oasis.lab.compare.config import Cell
    from oasis.lab.config import RunConfig
    from oasis.lab.settings import Settings


class Commands(typer.core.TyperGroup):
    """Ctrl-C ends any command with one line and status 130, SIGTERM with 143."""

    def invoke(self, ctx):  # a context of the click inside typer, or of click's own
        try:
            starting.begun()
            with starting.Terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            print(file=sys.stderr)
            fail("interrupted", starting.status(stop))


app = typer.Typer(
    name="oasis",
    cls=Commands,
    help="Train on the few samples worth training on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    config: Annotated[
        str | None,
        typer.Argument(metavar="[CONFIG.yaml]", help="Settings of the run; without it, defaults."),
    ] = None,
    overrides: Overrides = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Rows of your own: a file, folder or hub name (repeatable)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A folder with a model, or a hub name.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and what it takes.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="report.html beside the record.")
    ] = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
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
    """Train a language model on the samples that a policy selects, of tasks or of your own rows.

    `oasis train --data rows.jsonl --model DIR` trains LoRA on a quarter of a file's rows and judges
    it on rows held out; docs/data.md has the formats.
    """
    say(quiet, "loading")
    changes = list(overrides or ())
    if config is not None and "=" in config:  # no file, but the first of the settings
        changes, config = [config, *changes], None
    given = {"data": data, "model": model, "resume": resume or None}
    settings = _settings(config, changes, {k: v for k, v in given.items() if v})
    set_up(quiet, verbose)
    if dry_run:
        _plan(settings)
    else:
        _train(settings, progress=not quiet, report=report, overwrite=overwrite)


def _plan(settings: RunConfig) -> None:
    with one_line():
        from oasis.lab import paper
        from oasis.lab.dry_run import dry_run
    name = settings.paper
    with running("interrupted"):
        if name is not None and settings.model == paper.settings(name)["model"]:
            lines = paper.plan(name, settings)  # with empty weights
        else:
            lines = dry_run(settings)
        for line in lines:
            print(line)


def _train(settings: RunConfig, *, progress: bool, report: bool, overwrite: bool) -> None:
    with one_line():
        from oasis.lab.record.log import EVENTS
        from oasis.lab.run import run
        from oasis.lab.summary import summary
    if (settings.directory / EVENTS).exists() and not (settings.resume or overwrite):
        fail(
            f"{settings.directory} holds a run already: --resume goes on with it, --overwrite "
            "replaces it, name=NAME makes another"
        )
    hint = "; --resume goes on from its last checkpoint" if settings.save_steps else ""
    with running(f"interrupted; {settings.directory} keeps what was done{hint}"):
        result = run(settings, progress=progress)
        for line in summary(result):
            print(line)
        if report:
            from oasis.lab import report as pages

            print(f"wrote {pages.write([settings.directory], settings.directory / 'report.html')}")


def _settings(config: str | None, changes: list[str], given: dict[str, object]) -> RunConfig:
    """The settings of a run: those of the file, then `key=value`, then options."""
    with one_line():
        from oasis.lab import preflight, strict_yaml
        from oasis.lab.config import RunConfig
    named = [f"{key}=" for key in given]
    with one_line(ValueError, TypeError, OSError):
        if config is None:
            settings = RunConfig.put_together({}, changes, given)
            preflight.check(settings)
            return settings
        with strict_yaml.located(config, [*changes, *named]):
            settings = RunConfig.load(config, changes, given)
            preflight.check(settings)
        return settings


app.command()(select)
app.command()(adapt)


@app.command()
def init(
    out: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write.")] = Path(
        "oasis.yaml"
    ),
) -> None:
    """Write a YAML file of all settings of a run, each with its default and what it is."""
    with one_line():
        from oasis.lab.config import RunConfig
        from oasis.lab.settings.reference import commented
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(commented(RunConfig))
    except FileExistsError:
        fail(f"{out} is there already")
    except OSError as error:
        fail(f"{out}: {error.strerror}")
    print(f"wrote {out}; run it with: oasis train {out}")


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the runs and report.html.")
    ] = Path("runs/demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A fraction of the stream, to see that it all works.")
    ] = False,
    fill: Annotated[
        bool, typer.Option("--fill", help="Ours in full training batches too: which is faster?")
    ] = False,
) -> None:
    """Train a small real language model on real tasks with a quarter of the data, and compare.

    Policies: oasis, random and full. A few minutes on two CPU cores; downloads about 135 MB once.
    """
    say(False, "loading")
    with one_line():
        from oasis.lab.demo import demo
    set_up()
    with running(f"interrupted; {out} keeps what was done"):
        demo(out=out, quick=quick, fill=fill)


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
    say(False, "loading")
    with one_line():
        from oasis.lab import strict_yaml
        from oasis.lab.compare import Grid, runner
    set_up()
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
    from oasis.lab.record.log import EVENTS
    from oasis.lab.report import comparison
    from oasis.lab.report.folders import load_all

    there = [cell for cell in cells if (cell.directory / EVENTS).exists()]
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
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Run directories, or folders of them; or the record of one selection.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
) -> None:
    """Draw runs, finished or not, as one self-contained HTML page.

    Of all runs of a comparison, more than five variants or several seeds, the page is that of a
    comparison, with figures/*.png and results.csv, results.parquet and results.json beside it. Of a
    NAME.record.jsonl it is that of `oasis select`.
    """
    with one_line():
        from oasis.lab import report
        from oasis.lab.report import selection
    if len(runs) == 1 and runs[0].is_file():
        with one_line(OSError, ValueError):
            print(f"wrote {selection.write(runs[0], out)}")
        return
    with one_line(OSError, ValueError):
        folders = report.find(runs)
    with one_line(OSError, ValueError):
        print(f"wrote {report.write(folders, out)}")


app.command()(doctor)
