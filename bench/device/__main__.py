"""`python -m bench.device [--dry] [--out FOLDER] [--tests TEXT]`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import torch

from bench import device
from bench.device import kernels
from bench.device.bench import Bench, card
from bench.device.head import head
from bench.device.sheet import Sheet
from bench.device.sizes import DRY, Sizes
from bench.device.training import training


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=device.__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="tiny sizes on CPU tensors")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), metavar="FOLDER")
    parser.add_argument("--tests", default="", help="what the tests said, for the report")
    given = parser.parse_args(arguments)
    if not given.dry and not torch.cuda.is_available():
        raise SystemExit("no GPU that torch can use was found; --dry runs on the CPU")
    where = torch.device("cpu" if given.dry else "cuda")
    name = re.sub(r"[^A-Za-z0-9]+", "-", card(where)).strip("-")
    sheet = Sheet(given.out / f"device-{name}.md")
    began = time.perf_counter()
    bench = Bench(DRY if given.dry else Sizes(), where, sheet)
    bench.describe(given.tests)
    kernels.grad_gram(bench)
    kernels.siren(bench)
    head(bench, kernels.choosing(bench))
    training(bench)
    sheet.write("", f"All of it took {time.perf_counter() - began:.0f} s.")
    print(f"written to {sheet.path}")
    for failure in bench.failed:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
