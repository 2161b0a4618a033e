"""Tables and figures of bench/streams/README.md, from the rows that were kept of its runs.

`python -m bench stream_tables` prints, for each of bench/streams/results/*.csv, a table for every
ratio and task order: mean +- standard deviation over the seeds, and Welch's test against ours.
Where there are several ratios, and ours, also what ours is above each rival in the mean over the
ratios, paired by seed (the same stream in the same order), with the standard error over the seeds
and the paired t-test; of free text, held-out losses. Of wild.csv it draws results/accuracy.png, of
real-deep.csv results/compute.png. Grids whose seeds draw their own texts (real-*.csv) are paired by
seed, macro beside micro, with Holm's p; the rivals of the same share once more, by themselves. The
columns are those of `oasis compare`.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from scipy import stats

from bench.frozen.tables import by_seed, family, paired_difference, tables, with_interval
from bench.timing import table
from oasis.lab.report.comparison import p_value, png
from oasis.lab.report.comparison_figures import accuracy_ranking, by_ratio
from oasis.lab.report.compute_figure import over_compute
from oasis.lab.report.results import Variant, Welch, welch

RESULTS = Path(__file__).parent / "streams" / "results"
OURS = "oasis"
HEADER = [
    "policy",
    *("A_last", "of each seed", "A_avg", "p (A_last)", "p (A_avg)"),
    *("realised", "density", "skew"),
]
RIVALS = ("vanilla", "gradnorm", "divbs", "random")  # those asked about, before anything was run
PAIRED = ["ours minus", "seeds", "A_last", "p", "A_avg", "p"]
LOSS = ["policy", "samples", "loss", "of each seed", "ours minus this", "p (paired)", "TFLOP"]
MEANS = ["", "A_last, macro", "of each seed", "micro", "A_avg", "TFLOP"]
COST = ["policy", "scoring", "training", "time", "FLOPs"]


def variants(rows: pd.DataFrame) -> list[Variant]:
    """Rows that differ in their seed alone, together."""
    keys = ["label", "policy", "ratio", "order"]
    return [
        Variant(label, policy, {}, ratio, order, [], group.sort_values("seed"))
        for (label, policy, ratio, order), group in rows.groupby(keys, sort=False)
    ]


def rows_of(group: list[Variant]) -> list[list[str]]:
    """Variants of one ratio and order, and full training, the best A_last first."""
    ours = next((v for v in group if v.label == OURS), None)
    return [_row(v, ours) for v in sorted(group, key=lambda v: -v.mean("a_last"))]


def _row(variant: Variant, ours: Variant | None) -> list[str]:
    tests = [_test(variant, ours, metric) for metric in ("a_last", "a_avg")]
    return [
        f"**{variant.label}**" if variant is ours else variant.label,
        _score(variant, "a_last"),
        ", ".join(f"{100 * value:.1f}" for value in variant.values("a_last")),
        _score(variant, "a_avg"),
        *("-" if test is None or test.p is None else p_value(test.p) for test in tests),
        f"{100 * variant.mean('realised_ratio'):.2f} %",
        f"{variant.mean('density'):.3f}",
        f"{variant.mean('skew'):.2f}",
    ]


def paired(rows: pd.DataFrame) -> list[list[str]]:
    """Ours minus each policy that ran with ours at every ratio and seed, in points.

    The mean over the ratios is taken first: runs of one seed share their texts and their order, so
    the seeds are what is independent.
    """
    lines = []
    cells = rows[rows.ratio < 1].pivot_table(
        ["a_last", "a_avg"], index=["ratio", "seed"], columns="label"
    )
    counts = cells["a_last"].count()
    for label in counts.index[(counts >= counts[OURS]) & (counts.index != OURS)]:
        ours, theirs = (cells.xs(name, axis=1, level="label") for name in (OURS, label))
        of_seed = 100 * (ours - theirs).dropna().groupby("seed").mean()
        line = [label, str(len(of_seed))]
        for metric in ("a_last", "a_avg"):
            values = of_seed[metric]
            p = stats.ttest_1samp(values, 0).pvalue
            line += [f"{values.mean():+.1f} +- {values.sem():.1f}", p_value(p)]
        lines.append(line)
    return lines


def same_share(rows: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and lines: what ours has more than `RIVALS` at its own ratios, paired by seed.

    Holm's p is over the rivals of a ratio that share two seeds with ours; the others are left out.
    """
    values = by_seed(percent(rows))
    header, lines = ["ours minus"], {rival: [rival] for rival in RIVALS}
    for ratio in sorted({r for label, r in values if label == OURS}, reverse=True):
        ours = values[OURS, ratio]
        there = {rival: values.get((rival, ratio), {}) for rival in RIVALS}
        tests = {
            rival: [paired_difference(ours, seeds, which) for which in (0, 1)]
            for rival, seeds in there.items()
            if len(ours.keys() & seeds.keys()) > 1
        }
        if not tests:
            continue
        p = family({rival: macro for rival, (macro, _) in tests.items()})
        header += [f"{100 * ratio:g} %, macro", "micro", "p"]
        for rival, line in lines.items():
            tested = rival in tests
            line += [*map(with_interval, tests[rival]), p_value(p[rival])] if tested else 3 * [""]
    return header, [line for line in lines.values() if any(line[1:])]


def with_tflop(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(tflop=(rows.score_flops + rows.train_flops) / 1e12)


def means(rows: pd.DataFrame) -> list[list[str]]:
    """By label and ratio, the best macro accuracy at the end first."""
    found = with_tflop(rows).sort_values("seed")
    groups = [(*key, group) for key, group in found.groupby(["label", "ratio"])]
    lines = []
    for label, ratio, group in sorted(groups, key=lambda found: -found[2].a_last_macro.mean()):
        name = label if ratio == 1 else f"{label} {100 * ratio:g} %"
        lines.append(
            [
                f"**{name}**" if label == OURS else name,
                f"{100 * group.a_last_macro.mean():.1f}",
                ", ".join(f"{100 * value:.1f}" for value in group.a_last_macro),
                f"{100 * group.a_last_micro.mean():.1f}",
                f"{100 * group.a_avg.mean():.1f}",
                f"{group.tflop.mean():.1f}",
            ]
        )
    return lines


def percent(rows: pd.DataFrame) -> list[dict]:
    """What `bench.frozen.tables.tables` reads."""
    macro, micro = 100 * rows.a_last_macro, 100 * rows.a_last_micro
    return rows.assign(macro=macro, micro=micro).to_dict("records")


def losses(rows: pd.DataFrame) -> list[list[str]]:
    """Held-out losses of free text, the least first, and what ours has more, paired by seed."""
    found = with_tflop(rows).groupby(["label", "ratio"])
    groups = {k: g.set_index("seed").sort_index() for k, g in found}
    of_seed = {k: {seed: (loss,) for seed, loss in g.loss.items()} for k, g in groups.items()}
    ours = next((seeds for (label, _), seeds in of_seed.items() if label == OURS), {})
    lines = []
    for key, group in sorted(groups.items(), key=lambda pair: pair[1].loss.mean()):
        label, ratio = key
        tested = ["", ""]
        if label != OURS and len(ours.keys() & of_seed[key].keys()) > 1:
            more, half, p = paired_difference(ours, of_seed[key], 0)
            tested = [f"{more:+.3f} +- {half:.3f}", p_value(p)]
        lines.append(
            [
                f"**{label}**" if label == OURS else label,
                f"{100 * ratio:g} %",
                f"{group.loss.mean():.3f}",
                ", ".join(f"{value:.3f}" for value in group.loss),
                *tested,
                f"{group.tflop.mean():.1f}",
            ]
        )
    return lines


def cost(rows: pd.DataFrame) -> list[list[str]]:
    """Seconds of scoring and training, and both relative to ours; FLOPs relative to ours."""
    lines = []
    rows = rows.assign(
        time=rows.score_seconds + rows.train_seconds, flops=rows.score_flops + rows.train_flops
    ).set_index("label")
    for label, row in rows.sort_values("time").iterrows():
        time, flops = row.time / rows.time[OURS], row.flops / rows.flops[OURS]
        seconds = (f"{row.score_seconds:.1f} s", f"{row.train_seconds:.1f} s")
        lines.append([label, *seconds, f"{time:.2f}", f"{flops:.2f}"])
    return lines


def _test(variant: Variant, ours: Variant | None, metric: str) -> Welch | None:
    if ours is None or variant is ours:
        return None
    return welch(ours.values(metric), variant.values(metric))


def _score(variant: Variant, metric: str) -> str:
    deviation = variant.deviation(metric)
    spread = "" if deviation is None else f" +- {100 * deviation:.1f}"
    return f"{100 * variant.mean(metric):.1f}{spread}"


def _with_first_draws(again: pd.DataFrame) -> pd.DataFrame:
    """The rows of real-again.csv and those of real-wild.csv at its ratios: ten draws of texts."""
    first = pd.read_csv(RESULTS / "real-wild.csv")
    return pd.concat([first[first.ratio.isin(again.ratio)], again])


def run() -> None:
    for path in sorted(RESULTS.glob("*.csv")):
        rows = pd.read_csv(path)
        if path.stem == "cost":
            table("cost, ours = 1", COST, cost(rows))
            continue
        if rows.a_last.isna().all():
            table(f"{path.stem}, held-out loss in nats", LOSS, losses(rows))
            continue
        if path.stem.startswith("real-"):
            table(path.stem, MEANS, means(rows))
            tables(percent(rows), unscored=("random", "balanced"))
            table(f"{path.stem}, rivals of the same share", *same_share(rows))
            if path.stem == "real-again":
                title = "real-wild and real-again, rivals of the same share"
                table(title, *same_share(_with_first_draws(rows)))
            if path.stem == "real-deep" and (figure := over_compute(variants(rows))):
                png(figure, RESULTS / "compute.png")
            continue
        found = variants(rows)
        for order in dict.fromkeys(v.order for v in found):
            for ratio, group in by_ratio([v for v in found if v.order == order]):
                table(f"{path.stem}, {100 * ratio:g} %, {order}", HEADER, rows_of(group))
        several = rows.ratio[rows.ratio < 1].nunique() > 1
        if several and OURS in set(rows.label):  # else there is nothing to compare with
            table(f"{path.stem}, all ratios together", PAIRED, paired(rows))
        if path.stem == "wild":
            png(accuracy_ranking(found), RESULTS / "accuracy.png")
