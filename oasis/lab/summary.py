"""What came out of a run, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from oasis.lab.metrics import loss_text
from oasis.lab.record.result import RunResult


def summary(result: RunResult) -> Iterator[str]:
    """Each task before training and at the end, then the run's averages and what it trained on."""
    if result.finished:
        for name, after in result.history[-1].items():
            before = result.zero_shot.get(name)
            start = "" if before is None else f"{100 * before:.1f} % before training, "
            yield f"{name}: {start}{100 * after:.1f} % at the end"
        for name, after in result.losses[-1].items():
            before = result.losses[0].get(name)
            start = "" if before is None else f"{loss_text(before)} before training, "
            yield f"{name}: held-out {start}{loss_text(after)} at the end"
        if result.a_last is not None and result.a_avg is not None:
            yield f"A_last {100 * result.a_last:.1f} %, A_avg {100 * result.a_avg:.1f} %"
    taken = f"trained on {result.trained} of {result.candidates} samples"
    if result.trained == result.selected:
        yield f"{taken} ({100 * result.ratio:.2f} %) in {result.seconds:.0f} s"
    else:  # mode "fill"
        waited = result.selected - result.trained
        yield f"{taken} in {result.seconds:.0f} s; {waited} selected ones still waited for more"
