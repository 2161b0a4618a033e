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
