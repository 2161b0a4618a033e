"""The page of a comparison: many variants, tests over the seeds, ablations, figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from oasis.lab.report import comparison_figures as draw
from oasis.lab.report import compute, compute_figure, figures, groups, html, results
from oasis.lab.report.recolour import recolour
from oasis.lab.report.results import Variant, ours_among
from oasis.lab.report.runs import Run
from oasis.train import atomic

# (file name, function, title, what it shows, whole page wide?)
FIGURES: tuple[tuple[str, Callable, str, str, bool], ...] = (
    (
        "accuracy",
        draw.accuracy_ranking,
        "Accuracy at the end",
        "A_last: the mark is the mean over the seeds, the line its standard deviation, the ticks "
        "are the seeds. Dotted: training on everything. The axis begins at chance where that is "
        "known, else at zero.",
        True,
    ),
    (
        "compute",
        compute_figure.over_compute,
        "Accuracy over compute",
        "A_last against what scoring and training cost; each curve is a policy at its ratios, "
        "random's ends in training on everything. Mean and standard deviation over the seeds; the "
        "axis of accuracy begins at chance where that is known, else at zero.",
        True,
    ),
    (
        "over_time",
        draw.over_candidates,
        "Accuracy over time",
        "Held-out accuracy over the tasks seen so far, at each task boundary; mean over the seeds.",
        True,
    ),
    (
        "equal_time",
        draw.over_seconds,
        "Accuracy at equal wall-clock time",
        "Held-out accuracy over all tasks (those not met yet: before training) against the seconds "
        "spent on scoring and training, at each task boundary. Grey: the other variants.",
        True,
    ),
    (
        "cost",
        draw.cost,
        "Cost relative to ours",
        "Measured seconds, and estimated operations, of scoring and training.",
        True,
    ),
    (
        "density_skew",
        draw.density_and_skew,
        "What was selected",
        "Density: how alike the selected samples are. Skew: how unevenly the tasks are served. The "
        "line is the standard deviation over the seeds.",
        True,
    ),
    (
        "per_task",
        draw.selected_per_task,
        "Selected per task",
        "Share of each task's candidates that was trained on, over all seeds.",
        True,
    ),
    (
        "qq",
        draw.qq,
        "Is z standard normal?",
        "Quantiles of relative informativeness against those of N(0, 1), which the threshold "
        "assumes (dotted).",
        False,
    ),
)


PARTS = ("siren", "ridge", "draw", "temperature")  # options that are parts of the method


def write(runs: Sequence[Run], out: str | Path, title: str | None = None) -> Path:
    """Write the page to `out`, and beside it each figure as `figures`/*.png and the numbers as
    results.parquet, results.csv (one row per run), results.json (means, tests) and, where random
    ran at several ratios, equal_compute.csv. `title`: of the page, None for a general one.
    """
    out = Path(out)
    (out.parent / "figures").mkdir(parents=True, exist_ok=True)
    found = results.variants(runs)
    results.write(runs, found, out.parent)
    equal = compute.records(found, draw.main_order(found))
    if len(equal):
        with atomic.replacing(out.parent / "equal_compute.csv") as path:
            equal.to_csv(path, index=False)
    cards = []
    for index, (name, function, heading, caption, wide) in enumerate(FIGURES):
        figure = function(found) if found else None
        if figure is None:
            continue
        cards.append(html.card(figure, f"f{index}-", heading, caption, wide=wide))
        png(figure, out.parent / "figures" / f"{name}.png")
    filters = {"points": points, "p_value": p_value, "decimals": decimals, "signed": signed}
    template = html.load_template("comparison.html.j2", **filters)
    page = template.render(
        title=title or "Policies compared",
        facts=html.facts(runs),
        tiles=tiles(found),
        bands=bands(found),
        judged=[name for name in ("a_last", "loss") if any(v.values(name) for v in found)],
        note=seeds_note(found),
        bandwidth=next((v.mean("bandwidth") for v in found if v.values("bandwidth")), None),
        tables=tables(found),
        figures=cards,
        runs=runs,
        finished=sum(run.finished for run in runs),
    )
    atomic.write(out, page)
    return out


def png(figure: Figure, path: Path) -> None:
    """Writes a figure in the colours of the page, whole or not at all."""
    with rc_context(figures.STYLE):
        recolour(figure)
        settings = {"dpi": 144, "facecolor": "white", "metadata": {"Software": None}}
        with atomic.replacing(path) as partial:
            figure.savefig(partial, format="png", **settings)


def tiles(found: Sequence[Variant]) -> list[dict]:
    """Ours, random, the best rival and full training at the ratio with the most variants."""
    if not found:
        return []
    ratio, alike = max(draw.by_ratio(found), key=lambda pair: len(pair[1]))
    ours = ours_among([v for v in alike if v.ratio == ratio])
    look = draw.looks(alike)
    judged = "a_last" if any(v.values("a_last") for v in alike) else "loss"
    shown = [v for v in alike if look[v.label].highlighted and v.values(judged)]
    order = {groups.BLUE: 0, groups.VERMILLION: 1, groups.ORANGE: 2, groups.INK: 3}
    result = []
    for variant in sorted(shown, key=lambda v: order[look[v.label].color]):
        test = None
        if ours is not None and variant is not ours and ours.values(judged):
            test = results.welch(ours.values(judged), variant.values(judged))
        result.append(
            {
                "label": variant.label,
                "color": html.VARIABLES[look[variant.label].color],
                "judged": judged,
                judged: variant.mean(judged),
                "ratio": variant.mean("realised_ratio"),
                "difference": test.difference if test else None,
                "p": test.p if test else None,
                "reason": test.reason if test else "",
            }
        )
    return result


def bands(found: Sequence[Variant]) -> list[dict]:
    """The main table: variants of one ratio, task order and training together, best first."""
    several = len({v.order for v in found}) > 1
    common = results.main_settings(found)
    result = []
    for alike in results.comparable(found):
        ratio, order, own = alike[0].ratio, alike[0].order, alike[0].settings
        ours = ours_among(alike) or results.ours_at_most(found, order, own)
        title = "all samples" if ratio == 1 else f"{100 * ratio:g} % of the samples"
        title += f", {order}" if several else ""
        for name in sorted(own.keys() | common.keys()):
            if own.get(name) != common.get(name):
                title += f", {name} {own.get(name, results.DEFAULTS.get(name))}"
        lines = [line(v, ours) for v in alike]
        lines.sort(key=_rank)
        result.append({"title": title, "rows": lines})
    return result


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    """Best first: by accuracy, and where there is none by loss."""
    a_last, loss = row["a_last"], row["loss"]
    return -(a_last or 0.0), float("inf") if loss is None else loss


def line(variant: Variant, ours: Variant | None) -> dict[str, Any]:
    """One row of the main table."""
    metrics = ("selected", "realised_ratio", "forgetting", "density", "skew")
    values: dict[str, Any] = {name: variant.mean(name) for name in metrics}
    kind = "ours" if variant is ours else variant.policy
    values |= {
        "label": variant.label,
        "seeds": variant.seeds,
        "kind": kind if kind in ("ours", "random", "full") else "",
        "test": variant.against_ours,
        "time": _relative(variant.work_seconds, ours and ours.work_seconds),
        "flops": _relative(variant.flops, ours and ours.flops),
    }
    for name in results.TESTED:
        of_it = variant.mean(name), variant.deviation(name), variant.mark(name)
        values |= dict(zip((name, f"{name}_sd", f"{name}_mark"), of_it, strict=True))
    return values


def _relative(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def tables(found: Sequence[Variant]) -> list[dict]:
    """Equal compute; ablations: components, single options of a policy, task orders; each where
    there is one, of variants that have an accuracy.
    """
    found = [variant for variant in found if variant.values("a_last")]
    shown = (*compute_figure.tables(found), components(found), *options(found), orders(found))
    return [table for table in shown if table]


def components(found: Sequence[Variant]) -> dict | None:
    """Ours, ours with another draw or redundancy rule, `vanilla` and `random`, all trained alike,
    for every ratio.
    """
    here = [v for v in found if v.order == draw.main_order(found)]
    ours = ours_among(here)
    if ours is None:
        return None

    def rest(variant: Variant) -> dict[str, Any]:
        return {name: o for name, o in variant.resolved().items() if name not in PARTS}

    alike = [v for v in here if v.settings == ours.settings]
    parts = [v for v in alike if v.policy in ("vanilla", "random")]
    parts += [v for v in alike if v.policy == "oasis" and rest(v) == rest(ours)]
    if len({v.label for v in parts}) < 2:
        return None
    ratios = sorted({v.ratio for v in parts}, reverse=True)
    rank = {"random": 0, "vanilla": 1, "oasis": 2}
    parts.sort(key=lambda v: (rank[v.policy], v.label == ours.label))
    labels = dict.fromkeys(v.label for v in parts)
    rows = []
    for label in labels:
        cells = []
        for ratio in ratios:
            match = [v for v in parts if (v.label, v.ratio) == (label, ratio)]
            cells.append(_both(match[0]) if match else "–")
        rows.append([label, *cells])
    columns = ["variant", *(f"A_last, A_avg at {100 * ratio:g} %" for ratio in ratios)]
    caption = "What each part of ours adds: from random and top-k (vanilla) to the whole."
    return _table("Components", caption, columns, rows, wide=len(ratios) > 1)


def options(found: Sequence[Variant]) -> list[dict]:
    """A table for every option in which runs of one policy and ratio differ and in nothing else
    (the ridge is part of the redundancy rule "residual").
    """
    result = []
    for alike in results.comparable(found):
        for policy in dict.fromkeys(v.policy for v in alike):
            group = [v for v in alike if v.policy == policy]
            for name in dict.fromkeys(key for v in group for key in v.resolved()):
                result += _option(name, group)
    return result


def _option(name: str, group: Sequence[Variant]) -> Iterator[dict]:
    """Tables of one option of one policy, one for each choice of the others."""
    base: dict[str, list[tuple[Any, Variant]]] = {}
    for variant in group:
        rest = dict(variant.resolved())
        value = rest.pop(name, "default")
        if name == "siren":
            rest.pop("ridge", None)
        base.setdefault(json.dumps(rest, sort_keys=True), []).append((value, variant))
    for rest, same in base.items():
        if len({str(value) for value, _ in same}) < 2:
            continue
        same.sort(key=lambda pair: _numbers_first(pair[0]))
        rows = [
            [value, _score(v, "a_last"), _score(v, "a_avg"),
             html.percent(v.mean("realised_ratio"), 2)] for value, v in same
        ]  # fmt: skip
        policy, ratio = group[0].policy, group[0].ratio
        caption = f"At {100 * ratio:g} % of the samples{_given(policy, rest)}."
        yield _table(f"{policy}: {name}", caption, [name, "A_last", "A_avg", "ratio"], rows)


def _numbers_first(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, value if number else 0.0, str(value)


def _given(policy: str, rest: str) -> str:
    """The options that all rows of a table share, where they are not the default."""
    usual = results.resolved(policy, {})
    own = {k: v for k, v in json.loads(rest).items() if usual.get(k) != v}
    return "" if not own else f" with {json.dumps(own)}"


def orders(found: Sequence[Variant]) -> dict | None:
    """A_last and A_avg by task order, for variants that ran in several."""
    names = list(dict.fromkeys(v.order for v in found))
    if len(names) < 2:
        return None
    rows = []
    for label, ratio in dict.fromkeys((v.label, v.ratio) for v in found):
        match = {v.order: v for v in found if (v.label, v.ratio) == (label, ratio)}
        cells = [_both(match[name]) if name in match else "–" for name in names]
        rows.append([f"{label}, {100 * ratio:g} %", *cells])
    return _table("Task order", "A_last, A_avg.", ["variant", *names], rows, wide=True)


def _table(title: str, caption: str, columns: list, rows: list, wide: bool = False) -> dict:
    return {"title": title, "caption": caption, "columns": columns, "rows": rows, "wide": wide}


def _score(variant: Variant, metric: str) -> str:
    deviation = variant.deviation(metric)
    spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
    return html.percent(variant.mean(metric)) + spread


def _both(variant: Variant) -> str:
    return f"{_score(variant, 'a_last')}, {html.percent(variant.mean('a_avg'))}"


def seeds_note(found: Iterable[Variant]) -> str:
    """How many seeds stand behind the numbers."""
    seeds = sorted({variant.seeds for variant in found})
    if not seeds:
        return ""
    if seeds[-1] < 2:
        return "One seed each: differences are not tested, and may be chance."
    span = f"{seeds[0]} to {seeds[-1]}" if seeds[0] < seeds[-1] else f"{seeds[0]}"
    return f"Seeds a variant: {span}."


def points(difference: float) -> str:
    """`+1.2`: percentage points with a sign."""
    return f"{100 * difference:+.1f}".replace("-", "\u2212")


def signed(difference: float) -> str:
    """`+0.012`: nats with a sign."""
    return f"{difference:+.3f}".replace("-", "\u2212")


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def decimals(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
