"""What the CPU kernels take beside their results, and what happens where there is no more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.timing import extra_megabytes

LIMITED = """
import re, resource, sys, torch
from oasis import _core

def limit(megabytes):
    used = re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
    bound = (int(used) + megabytes * 1024) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (bound, resource.RLIM_INFINITY))

n = 2000
grads, out = torch.ones(n, 1), torch.zeros(n, n, dtype=torch.float64)
identity, valid = torch.eye(30, dtype=torch.float64), torch.ones(n, dtype=torch.bool)
adjusted, order = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)

def gram():
    _core.gram(grads.data_ptr(), "float32", [n, 1], [1, 1], False, out.data_ptr())

def siren(method, matrix):
    pointers = matrix.data_ptr(), valid.data_ptr(), len(matrix), method, 0.0, -float("inf")
    _core.siren(*pointers, adjusted.data_ptr(), order.data_ptr(), 0)

calls = [gram, lambda: siren("exact", identity), lambda: siren("residual", out)]
for call, bound in zip(calls, (4, 1000, 4)):
    limit(bound)
    try:
        call()
        print("done")
    except MemoryError:
        print("MemoryError")
limit(1 << 20)
gram()
print(int(out.sum()) == n * n)
"""


def test_lack_of_memory_raises_and_the_process_goes_on():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a thread is memory too
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["MemoryError"] * 3 + ["True"], done.stderr


@pytest.mark.parametrize("columns", [1, 4000])
def test_a_gram_of_many_samples_takes_little_beside_the_result(columns):
    n = 1600
    setup = f"import torch, oasis; g = torch.ones({n}, {columns}); oasis.grad_gram(g[:130])"
    result = n * n * 8 / 2**20
    # The result, the part of one parameter, half a result of partial sums, and per thread a block.
    assert extra_megabytes(setup, "oasis.grad_gram(g)") < 2.5 * result + 20
