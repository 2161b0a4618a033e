"""The report: a Markdown file that grows row by row, since a card may be there only once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.timing import show

HEADER = ("what", "case", "time", "floor", "share", "floor by", "extra memory", "note")


@dataclass(frozen=True)
class Row:
    group: str
    name: str
    seconds: float | None  # None: not run, `note` says why
    floor: float | None = None  # None: none is known
    bound: str = "-"  # what the floor is made of
    memory: float | None = None  # MiB beyond what was held, None where not measured
    note: str = ""

    def __str__(self) -> str:
        share = "-"
        if self.seconds is not None and self.floor is not None:
            share = f"{100 * self.floor / self.seconds:.0f} %"
        cells = (
            self.group,
            self.name,
            "not run" if self.seconds is None else show(self.seconds),
            "-" if self.floor is None else show(self.floor),
            share,
            self.bound,
            "-" if self.memory is None else f"{self.memory:,.0f} MiB",
            self.note,
        )
        return "| " + " | ".join(cells) + " |"


class Sheet:
    """Whatever is written is on disk, and printed, before the next case starts."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self.path = path

    def write(self, *lines: str) -> None:
        text = "\n".join(lines)
        with self.path.open("a") as file:
            file.write(text + "\n")
        print(text, flush=True)

    def table(self) -> None:
        self.write("", "| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER))
