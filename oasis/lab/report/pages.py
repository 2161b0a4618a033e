"""Which page the runs get: that of single runs, or that of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from oasis.lab import strict_yaml
from oasis.lab.report import groups, html
from oasis.lab.report.folders import GRID, find, load_all
from oasis.lab.report.runs import Run
from oasis.train import atomic

MOST_GROUPS = 5  # variants that the page of single runs tells apart


def write(run_dirs: Iterable[str | Path] | str | Path, out: str | Path = "report.html") -> Path:
    """Write one self-contained page about the runs, finished or not.

    Parameters
    ----------
    run_dirs : run directories (`config.yaml`, `events.jsonl`), or folders of run directories.
    out : the HTML file; its folder is made, an existing file is replaced.

    Returns the path written. Raises FileNotFoundError where a path holds no run, ValueError for
    no path at all. Of all runs of an `oasis compare`, of more than `MOST_GROUPS` variants, or of
    variants with several seeds, the page is that of a comparison (whose ValueErrors see
    `results.variants`).
    """
    runs = load_all(find(run_dirs))
    out = Path(out)
    name = comparison_name(runs)
    if name is not None or is_comparison(runs):
        from oasis.lab.report import comparison  # with pandas and scipy

        return comparison.write(runs, out, name)
    _refuse_other_tasks(runs)
    page = html.render(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(out, page)
    return out


def _refuse_other_tasks(runs: Sequence[Run]) -> None:
    """ValueError for runs whose accuracies are of different tasks, so that no mean is of both."""
    known = [run for run in runs if run.tasks]
    for run in known:
        if set(run.tasks) != set(known[0].tasks):
            raise ValueError(
                f"runs: {known[0].path} has the tasks {', '.join(known[0].tasks)}, but {run.path} "
                f"has {', '.join(run.tasks)}; draw them on pages of their own"
            )


def comparison_name(runs: Sequence[Run]) -> str | None:
    """The name of the `oasis compare` whose runs these are, and all of them; else None."""
    folders = {run.path.resolve().parent for run in runs}
    if len(folders) > 1 or len(find(folders)) > len(runs):
        return None
    grid = folders.pop().parent / GRID
    return str(strict_yaml.read(grid)["name"]) if grid.is_file() else None


def is_comparison(runs: Sequence[Run]) -> bool:
    """Whether there are too many variants for the page of single runs, or finished runs of one
    variant with several seeds.
    """
    finished = groups.group([run for run in runs if run.finished])
    seeds = [{run.seed for run in group.runs} - {None} for group in finished]
    return len(groups.group(runs)) > MOST_GROUPS or any(len(several) > 1 for several in seeds)
