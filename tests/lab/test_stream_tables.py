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
