"""`python -m bench [siren grad_gram head_gram ...]`: all by default.

`python -m bench readings|redundancy CONFIG.yaml [key=value ...]`: measurements on a real training
run; `python -m bench held_out_error|copies RUN...`: on finished ones; `python -m bench
stream_tables`: the tables of bench/streams again; `python -m bench rows`: memory of a million rows.
See the modules.
"""

from __future__ import annotations

import importlib
import platform
import sys

import torch

from oasis import _core

NAMES = (
    "siren",
    "host",
    "budget",
    "mean_field",
    "grad_gram",
    "head_gram",
    "head_overhead",
    "head_regimes",
    "head_choices",
    "head_sketch",
    "scoring",
    "multimodal",
    "memory",
    "reuse",
    "shallow",
)
ON_A_RUN = ("readings", "redundancy", "held_out_error", "copies")
ON_REQUEST = ("stream_tables", "rows")  # the first measures nothing, the second takes minutes


def main(names: list[str]) -> None:
    if names[0] in ON_A_RUN:
        importlib.import_module(f"bench.{names[0]}").main(names[1:])
        return
    for name in names:
        if name not in NAMES + ON_REQUEST:
            expected = ", ".join(NAMES + ON_REQUEST + ON_A_RUN)
            raise SystemExit(f"unknown benchmark {name!r}, expected some of {expected}")
    threads, isa = torch.get_num_threads(), _core.build_info()["isa"]
    print(f"torch {torch.__version__}, {threads} threads, {platform.machine()}, {isa}")
    for name in names:
        importlib.import_module(f"bench.{name}").run()


if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))
