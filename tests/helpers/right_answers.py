"""Right answers from 50-digit arithmetic, and the arguments they belong to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


def vectors(name: str):
    """The right answers called ``name``, from 50-digit arithmetic.

    OASIS_VECTORS names another folder; else tests/vectors.
    """
    folder = Path(os.environ.get("OASIS_VECTORS") or VECTORS)
    return json.loads((folder / f"{name}.json").read_text())


def head_arguments(case, dtype=torch.float64) -> dict:
    """The keyword arguments of head_gram for one case of ``head_gram.json``."""
    return {
        "hidden": torch.tensor(case["hidden"], dtype=dtype),
        "weight": torch.tensor(case["weight"], dtype=dtype),
        "labels": torch.tensor(case["labels"]),
        "sample": torch.tensor(case["sample"]),
        "num_samples": case["n"],
        "bias": None if case["bias"] is None else torch.tensor(case["bias"], dtype=dtype),
        "softcap": case["softcap"],
        "scale": case["scale"],
        "reduction": case["reduction"],
    }
