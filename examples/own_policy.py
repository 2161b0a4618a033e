"""A policy of your own, by its name: `python own_policy.py MODEL ROWS.jsonl KEPT.jsonl`."""

import sys
from pathlib import Path

from oasis import policies
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.select import SelectSettings, select


class Middle(policies.Resumable):
    """Takes the samples whose loss is nearest to the batch's median: neither known nor hopeless."""

    name, needs = "middle", frozenset({"loss"})

    def __init__(self, ratio=0.25, seed=0):
        self.budget = policies.Budget(ratio)

    def observe(self, signals):
        rows, skipped, (loss,) = policies.finite_rows(self.name, signals, "loss")
        nearest = (loss - loss.median()).abs().argsort(stable=True)
        return policies.outcome(signals, rows[nearest[: self.budget.take(len(rows))]], skipped)


policies.register("middle", Middle)


def keep(model_folder, rows_file, kept_file):
    data = DataSettings(path=[rows_file])
    settings = SelectSettings(model_folder, data, Path(kept_file), policy="middle")
    return select(settings, progress=False)


if __name__ == "__main__":
    done = keep(*sys.argv[1:])
    print(f"kept {done.kept} of {done.candidates} rows")
