"""`oasis adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oasis.command_line import Quiet, Verbose, fail, one_line, running, say, set_up

if TYPE_CHECKING:
    from oasis.lab.config import RunConfig

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN... [key=value]...", help="Finished runs; settings that differ."),
]
Data = Annotated[
    list[str], typer.Option("--data", help="Rows of the new task: a file, folder or hub name.")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs that adapt.")]
Base = Annotated[bool, typer.Option("--base/--no-base", help="Adapt the untrained model too.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is in the folder.")]


def adapt(
    runs: Runs,
    data: Data,
    out: Out = Path("adapted"),
    base: Base = True,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fine-tune what finished runs have learnt on a new task, and say how fast it is learnt.

    One pass of plain training from each run's LoRA weights, over the same rows in the same order;
    the held-out rows are judged before, after 1, 2, 4, ... steps, and at the end.
    """
    say(quiet, "loading")
    configs = _configs(runs, data, out, base, overwrite)
    with one_line():
        from oasis.lab import adapt as adapting
    set_up(quiet, verbose)
    with running(f"interrupted; {out} keeps what was done"):
        curves = list(adapting.adapt(configs, progress=not quiet))
        for line in adapting.tables(curves):
            print(line)


def _configs(
    runs: list[str], data: list[str], out: Path, base: bool, overwrite: bool
) -> list[RunConfig]:
    folders = [Path(run) for run in runs if "=" not in run]
    if not folders:
        fail("runs: got none, expected the folder of a finished run")
    with one_line():
        from oasis.lab import preflight
        from oasis.lab.adapt import adapting
        from oasis.lab.settings import override
    with one_line(ValueError, TypeError, OSError):
        changes = override({"data": {"path": data}}, [run for run in runs if "=" in run])
        configs = adapting(folders, changes, out=str(out), base=base)
        for config in configs:
            preflight.check(config)
            if config.directory.exists() and not overwrite:
                fail(f"{config.directory} is there already: --overwrite replaces it, --out DIR not")
    return configs
