"""What all tests share without asking; what they ask for is in helpers/."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("oasis", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("oasis")

# Their asserts say what they compared, as those of the tests do.
HELPERS = Path(__file__).resolve().parent / "helpers"
pytest.register_assert_rewrite(*(path.stem for path in HELPERS.glob("*.py")))

# Checks of a GPU mean nothing without one, and a row of skips would hide real ones: the files are
# not part of the suite there. OASIS_TEST_DEVICE=cpu runs them on CPU tensors
# (`bench/device.sh --dry`).
collect_ignore = (
    []
    if torch.cuda.is_available() or os.environ.get("OASIS_TEST_DEVICE")
    else ["gpu/test_device.py", "gpu/test_device_sketches.py"]
)


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """What a command with -q or -v does to the log ends with its test."""
    yield
    logging.getLogger("oasis").setLevel(logging.NOTSET)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240607)
