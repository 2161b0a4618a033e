"""bench/stream_tables.py on rows of a grid with and without ours."""

import pandas as pd
import pytest

from bench import stream_tables


@pytest.mark.parametrize("label", ["oasis", "remember"])
def test_a_grid_without_ours_has_its_tables_but_nothing_is_compared(
    tmp_path, monkeypatch, capsys, label
):
    rows = pd.read_csv(stream_tables.RESULTS / "memory.csv")
    rivals = rows.assign(label="rival", a_last=rows.a_last - 0.01, a_avg=rows.a_avg - 0.02)
    pd.concat([rows.assign(label=label), rivals]).to_csv(tmp_path / "some.csv", index=False)
    monkeypatch.setattr(stream_tables, "RESULTS", tmp_path)
    stream_tables.run()
    text = capsys.readouterr().out
    assert "some, 6.25 %" in text and "some, 12.5 %" in text
    assert ("some, all ratios together" in text) == (label == "oasis")
    if label == "oasis":
        assert "+1.0 +- 0.0" in text and "+2.0 +- 0.0" in text


def test_a_grid_of_fresh_texts_is_paired_by_seed(tmp_path, monkeypatch, capsys):
    rows = pd.read_csv(stream_tables.RESULTS / "real-lines.csv")
    ours = rows[(rows.label == "oasis") & (rows.ratio == 0.25)]
    less = {name: ours[name] - 0.015 for name in ("a_last_macro", "a_last_micro")}
    shuffled = ours.assign(label="random", ratio=0.5, **less).sample(frac=1, random_state=0)
    pd.concat([ours, shuffled]).to_csv(tmp_path / "real-some.csv", index=False)
    monkeypatch.setattr(stream_tables, "RESULTS", tmp_path)
    stream_tables.run()
    text = capsys.readouterr().out
    of_each = [", ".join(f"{100 * x:.1f}" for x in ours.sort_values("seed").a_last_macro)]
    assert of_each[0] in text and "**oasis 25 %**" in text
    row = next(line for line in text.splitlines() if line.startswith("| random 50 % | 5 |"))
    assert row.count("+1.5 +- 0.0") == 2


def test_ratios_of_one_seed_are_one_observation():
    # Of seed 0 ours has 1 and 3 points more, of seed 1 5 and 7: means of 2 and 6, so 4 +- 2.
    more = {(0.25, 0): 1, (0.125, 0): 3, (0.25, 1): 5, (0.125, 1): 7}
    rows = pd.DataFrame(
        {"label": label, "ratio": ratio, "seed": seed, "a_last": a, "a_avg": a}
        for (ratio, seed), points in more.items()
        for label, a in (("oasis", 0.5), ("rival", 0.5 - points / 100))
    )
    (line,) = stream_tables.paired(rows)
    assert line == ["rival", "2", "+4.0 +- 2.0", "0.30", "+4.0 +- 2.0", "0.30"]


def test_rivals_of_the_same_share_are_a_family_of_their_own():
    def rows_of(label, ratio, macro, micro):
        return [
            {"label": label, "ratio": ratio, "seed": seed, "a_last_macro": a, "a_last_micro": b}
            for seed, (a, b) in enumerate(zip(macro, micro, strict=True))
        ]

    ours = [0.5, 0.5, 0.5]
    header, lines = stream_tables.same_share(
        pd.DataFrame(
            [
                *rows_of("oasis", 0.25, ours, ours),
                *rows_of("oasis", 0.125, ours, ours),
                *rows_of("vanilla", 0.25, [0.49, 0.48, 0.47], [0.51, 0.51, 0.51]),
                *rows_of("random", 0.25, [0.41, 0.40, 0.39], [0.4, 0.4, 0.4]),
                *rows_of("random", 0.125, [0.41], [0.4]),  # one seed: not tested
                *rows_of("full", 1.0, [0.6, 0.6, 0.6], [0.6, 0.6, 0.6]),  # not of the family
            ]
        )
    )
    assert header == ["ours minus", "25 %, macro", "micro", "p"]
    # Both differ by a standard error of 1 / sqrt(3): t = 2 sqrt(3), p = 0.0742; t = 10 sqrt(3),
    # p = 0.0033, of which Holm makes twice as much. Half an interval: 4.303 / sqrt(3).
    assert lines == [
        ["vanilla", "+2.0 +- 2.5", "-1.0 +- 0.0", "0.074"],
        ["random", "+10.0 +- 2.5", "+10.0 +- 0.0", "0.007"],
    ]
