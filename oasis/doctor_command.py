"""`oasis doctor`, and whether selection pays: `oasis doctor --time MODEL`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from oasis.command_line import running, say, set_up

MODEL = (
    "Measure for some 20 s at which ratio selection pays with this model: 'smollm2', a folder, "
    "or a name on the Hugging Face hub."
)
_timed = partial(typer.Option, rich_help_panel="With --time")

Time = Annotated[str | None, typer.Option("--time", metavar="MODEL", help=MODEL)]
Batch = Annotated[list[int] | None, _timed(min=2, help="Candidates of a batch [4, 16].")]
Length = Annotated[int, _timed(min=2, help="Tokens of a sample.")]
Labels = Annotated[int, _timed(min=1, help="Label tokens of these.")]
Rank = Annotated[int, _timed(min=0, help="Of LoRA; 0: all weights.")]
LoraLayers = Annotated[int | None, _timed(min=1, help="Top blocks with LoRA; else all.")]
Checkpointing = Annotated[bool, _timed("--checkpointing", help="Of activations.")]
ReuseForward = Annotated[bool, _timed("--reuse-forward", help="As the trainer's option.")]
Device = Annotated[str, _timed(help="A device, or auto.")]
Dtype = Annotated[str, _timed(help="A number type, or auto.")]
Seconds = Annotated[float, _timed(min=0.0, help="To measure for.")]


def doctor(
    time: Time = None,
    batch: Batch = None,
    length: Length = 256,
    labels: Labels = 32,
    rank: Rank = 16,
    lora_layers: LoraLayers = None,
    checkpointing: Checkpointing = False,
    reuse_forward: ReuseForward = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seconds: Seconds = 20.0,
) -> None:
    """Show versions, devices and backends, and check that the compiled core works.

    With --time, measure instead at which ratio selection pays with a model on this machine.
    """
    if time is None:
        from oasis import doctor

        raise typer.Exit(doctor.main())
    say(False, "loading")
    set_up()
    with running("interrupted"):
        from oasis.lab import pays
        from oasis.lab.device import choose_device, choose_dtype

        setup = pays.Setup(length, labels, rank, lora_layers, checkpointing, reuse_forward)
        where = choose_device(device)
        kind = choose_dtype(dtype, where)
        model = pays.prepared(time, setup, where, kind)
        sizes = batch or [4, 16]
        trained = f"LoRA of rank {rank}" if rank else "all weights"
        print(f"{time} on {where}, {str(kind).removeprefix('torch.')}; {trained}")
        found = [pays.measure(model, size, setup, seconds / len(sizes)) for size in sizes]
    for line in pays.lines(found):
        print(line)
