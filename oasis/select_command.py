"""`oasis select`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oasis.command_line import Quiet, Verbose, fail, one_line, running, say, set_up

if TYPE_CHECKING:
    from oasis.lab.select import Outcome, SelectSettings

Model = Annotated[str, typer.Option("--model", help="A folder with a model, or a hub name.")]
Data = Annotated[
    list[str], typer.Option("--data", help="Rows: a file, folder or hub name (repeatable).")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="The .jsonl file of the kept rows.")]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value]...", help="Options of the policy; data.* are of the rows."),
]
Ratio = Annotated[float, typer.Option("--ratio", help="Share of the rows to keep.")]
Policy = Annotated[str, typer.Option("--policy", help="Any policy by name.")]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Rows that compete with each other.")]
Remember = Annotated[
    int | None, typer.Option("--remember", help="Option of policies that remember picked rows.")
]
MaxLength = Annotated[int, typer.Option("--max-length", help="Tokens that are scored of a row.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the policy.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, ...")]
Report = Annotated[
    bool, typer.Option("--report/--no-report", help="NAME.report.html beside the kept rows.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files of the same name.")]


def select(
    model: Model,
    data: Data,
    out: Out,
    options: Options = None,
    ratio: Ratio = 0.25,
    policy: Policy = "oasis",
    batch_size: BatchSize = 16,
    remember: Remember = None,
    max_length: MaxLength = 1024,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    report: Report = True,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Select rows of a file without training, in one pass of a model's forward.

    Kept rows are written as they are, in their order; NAME.record.jsonl beside them says of every
    row its score and why it was not kept, NAME.report.html shows them. Killed, the same command
    goes on where it was.
    """
    say(quiet, "loading")
    settings = _settings(
        data,
        [*(options or ()), *([] if remember is None else [f"remember={remember}"])],
        model=model,
        out=out,
        ratio=ratio,
        policy=policy,
        seed=seed,
        batch_size=batch_size,
        max_length=max_length,
        device=device,
        dtype=dtype,
    )
    with one_line():
        from oasis.lab.select import select as select_rows
    set_up(quiet, verbose)
    page = out.with_name(f"{out.stem}.report.html")
    if report and page.exists() and not overwrite:
        fail(f"{page} is there already; --overwrite replaces it, --no-report leaves it")
    with running(f"interrupted; the same command goes on with {out}"):
        done = select_rows(settings, overwrite=overwrite, progress=not quiet)
        _say(done, max_length)
        if report:
            from oasis.lab.report import selection

            print(f"wrote {selection.write(done.record, page)}")


def _settings(data: list[str], options: list[str], **given: Any) -> SelectSettings:
    with one_line():
        from oasis.lab.data.own.settings import DataSettings
        from oasis.lab.select import SelectSettings
        from oasis.lab.settings import override
    with one_line(ValueError, TypeError, OSError):
        policy = override({}, options)
        rows = policy.pop("data", {})
        if not isinstance(rows, dict):
            raise ValueError("data: expected data.FIELD=VALUE; files go with --data")
        settings = SelectSettings(
            data=DataSettings.from_mapping({"path": data, **rows}), options=policy, **given
        )
        settings.check()
    return settings


def _say(done: Outcome, max_length: int) -> None:
    for count, what in (
        (done.empty, "empty"),
        (done.dropped, "too long to learn from"),
        (done.too_long, "too long for their images"),
    ):
        if count:
            print(f"{count} of {done.rows} rows left out: {what}")
    if done.cut:
        print(f"{done.cut} rows scored by {max_length} of their tokens, and written whole")
    kept = f"kept {done.kept} of {done.candidates} ({100 * done.ratio:.2f} %)"
    print(f"{kept}, {done.seconds:.1f} s; {done.out}, {done.record}")
