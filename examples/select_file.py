"""Rows of a file kept without training: `python select_file.py MODEL ROWS.jsonl KEPT.jsonl`.

The command `oasis select` does the same; here the record is read as well.
"""

import collections
import json
import sys
from pathlib import Path

from oasis.lab.data.own.settings import DataSettings
from oasis.lab.select import SelectSettings, select


def keep(model_folder, rows_file, kept_file):
    data = DataSettings(path=[rows_file])
    done = select(SelectSettings(model_folder, data, Path(kept_file)), progress=False)
    rows = [json.loads(line) for line in done.record.read_text("utf-8").splitlines()[1:-1]]
    return done, collections.Counter("kept" if row["kept"] else row["why"] for row in rows)


if __name__ == "__main__":
    done, reasons = keep(*sys.argv[1:])
    print(f"kept {done.kept} of {done.candidates} rows: {dict(reasons)}")
