"""`oasis doctor`: what is installed, what is compiled in, which backend runs, and does it work.

Plain Python on purpose: it must run where the extra `[train]` is missing or broken.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

import torch

import oasis
from oasis import _core, operators
from oasis.extra import packages
from oasis.gram.backends.choice import describe as describe_head
from oasis.operators import launch

# Every environment variable that the package reads, and those of others that change its results
# or its speed. tests/core/test_doctor.py checks that none is missing.
ENVIRONMENT = {
    "OASIS_ISA": "caps the CPU kernels at `baseline`, `avx2` or `avx512` (default: the best)",
    "OASIS_HEAD_BACKEND": "`triton` or `torch` for head_gram, an error where that cannot run "
    "(default: compiled on a CPU, Triton on a GPU where it is installed)",
    "OASIS_CACHE": "folder of downloaded models and data (default: XDG_CACHE_HOME/oasis)",
    "XDG_CACHE_HOME": "parent of that folder (default: ~/.cache)",
    "OMP_NUM_THREADS": "threads of the CPU kernels and of torch (default: all cores)",
    "CUDA_VISIBLE_DEVICES": "GPUs that this process sees (default: all)",
    "TRITON_INTERPRET": "1 runs Triton kernels on the CPU, for tests (default: off)",
}

DEVICE_TYPES = ("cpu", "cuda")


def report() -> dict:
    """Everything the doctor knows, as plain values.

    Keys: `versions` {name: version or None}, `build` (of `oasis._core`), `devices` {name: what},
    `threads` {name: number or None}, `environment` {name: value or None}, `backends`
    {device type: {operator: (backend, reason)}}, `self_check` {ok, detail, seconds, first_seconds},
    `notes` [str] (what to do about what was found).
    """
    found = {
        "versions": _versions(),
        "build": _core.build_info(),
        "devices": _devices(),
        "threads": _threads(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "backends": {device: backends(device) for device in DEVICE_TYPES},
        "self_check": self_check(),
    }
    return found | {"notes": _notes(found)}


def self_check() -> dict:
    """Exact SIREN of three gradients in the plane, against the answer worked out by hand.

    g = (2, 0), (1, 1), (0, 1), so I = 4, 2, 1. Sample 0 is picked first. The rest then scores
    2 - 4 cos(g1, g0) = 2 - 4 / sqrt 2 < 0 and 1 - 4 cos(g2, g0) = 1, so sample 2 is next. Last,
    with mean(g0, g2) = (1, 1/2) of informativeness 5/2 (docs/method.md 2):
    A_1 = 2 - 4 / sqrt 2 - 1 / sqrt 2 + 5/2 * (3/2) / (sqrt 2 * sqrt(5/4)).
    """
    gram = torch.tensor([[4.0, 2, 0], [2, 2, 1], [0, 1, 1]], dtype=torch.float64)
    last = 2 - 5 / math.sqrt(2) + 2.5 * 1.5 / math.sqrt(2.5)
    seconds = []
    while True:  # the first call also sets up torch's dispatch
        began = time.perf_counter()
        result = oasis.siren(gram, method="exact")
        seconds.append(time.perf_counter() - began)
        if len(seconds) == 10:
            break
    order = result.order.tolist()
    want = torch.tensor([4.0, last, 1.0], dtype=torch.float64)
    error = float((result.adjusted.double().cpu() - want).abs().max())
    ok = order == [0, 2, 1] and error <= 1e-12
    detail = f"order {order}, expected [0, 2, 1]; largest error {error:.1e}, allowed 1e-12"
    return {"ok": ok, "detail": detail, "seconds": min(seconds), "first_seconds": seconds[0]}


def main() -> int:
    """Print the diagnosis; 0 if the self-check passed, 1 if it failed."""
    found = report()
    build, check = found["build"], found["self_check"]
    _section("versions", {name: v or "not installed" for name, v in found["versions"].items()})
    _section(
        "compiled in (oasis._core)",
        {
            "version": build["version"],
            "compiler": build["compiler"],
            "OpenMP": "yes" if build["openmp"] else "no: the CPU kernels use one thread",
            "instruction sets": f"{', '.join(build['isa_compiled'])}; in use: {build['isa']}",
            "CUDA": f"yes, for {build['cuda_architectures']}" if build["cuda"] else "no",
        },
    )
    _section("devices", found["devices"])
    _section("threads", {k: "not known" if v is None else v for k, v in found["threads"].items()})
    _section(
        "environment variables",
        {
            name: f"{'not set' if value is None else repr(value):<14} {ENVIRONMENT[name]}"
            for name, value in found["environment"].items()
        },
    )
    for device, chosen in found["backends"].items():
        width = max(len(backend) for backend, _ in chosen.values())
        rows = {op: f"{backend:<{width}}  {why}" for op, (backend, why) in chosen.items()}
        _section(f"backends on {device}", rows)
    verdict = "passed" if check["ok"] else "FAILED"
    timing = f"{1e6 * check['seconds']:.0f} microseconds, first call {check['first_seconds']:.3f} s"
    _section("self-check", {"exact SIREN, N = 3": f"{verdict}, {timing} ({check['detail']})"})
    for note in found["notes"]:
        print(f"note: {note}")
    return 0 if check["ok"] else 1


def _section(title: str, rows: dict) -> None:
    print(title)
    width = max(map(len, rows), default=0)
    for name, value in rows.items():
        print(f"  {name:<{width}}  {value}")
    print()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> dict[str, str | None]:
    versions = {"oasis": f"{oasis.__version__} ({Path(oasis.__file__).parent})"}
    versions["python"] = f"{platform.python_version()} ({sys.executable})"
    versions["platform"] = platform.platform()
    return versions | {name: _version(name) for name in ("torch", "numpy", "triton", *packages())}


def _devices() -> dict[str, str]:
    devices = {"cpu": _cpu_name()}
    for k in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(k)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        devices[f"cuda:{k}"] = f"{card.name}, sm_{card.major}{card.minor}, {memory}"
    cuda = torch.version.cuda or torch.version.hip
    devices["torch sees"] = (
        f"{len(devices) - 1} GPUs (built {f'for CUDA {cuda}' if cuda else 'without CUDA'})"
    )
    devices["oasis._core sees"] = f"{_core.cuda_device_count()} GPUs"
    return devices


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _threads() -> dict[str, int | None]:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return {
        "torch": torch.get_num_threads(),
        "cores of the machine": os.cpu_count(),
        "cores of this process": None if usable is None else len(usable),
    }


def _notes(found: dict) -> list[str]:
    notes = []
    missing = [name for name in packages() if found["versions"][name] is None]
    if missing:
        notes.append(
            f"training and reports need {', '.join(missing)}: pip install 'oasis-select[train]'"
        )
    if torch.cuda.is_available() and not found["build"]["cuda"]:
        notes.append(
            "torch sees a GPU but oasis was compiled without CUDA kernels; to compile them, put "
            "nvcc on the PATH and reinstall with CMAKE_ARGS=-DOASIS_CUDA=ON"
        )
    if not found["build"]["openmp"]:
        notes.append("the CPU kernels were compiled without OpenMP and use one thread")
    isa, known = found["environment"]["OASIS_ISA"], found["build"]["isa_compiled"]
    if isa and isa not in known:
        notes.append(f"OASIS_ISA is {isa!r}, expected one of {', '.join(known)}")
    return notes


def backends(device_type: str) -> dict[str, tuple[str, str]]:
    """Which backend each operator takes on `device_type` ("cpu" or "cuda"), and why."""
    if device_type == "cpu":
        cpu = operators.siren_backend("cpu")
        compiled = (cpu, "compiled core; instruction set chosen for this processor")
        head = describe_head("cpu")
        return {
            "grad_gram": compiled,
            "head_gram": (f"{cpu} + torch GEMM", head[1]) if head[0] == "compiled" else head,
            "siren": compiled,
            "oris": compiled,
            "memory": compiled,
        }
    without = "this build has no CUDA kernels (OASIS_CUDA=ON insists on them)"
    built = f"compiled for {_core.build_info()['cuda_architectures']}"
    copied = f"N x N copied; {without}"
    one = f"{built}; one launch with ORIS up to N = {launch.ONE_LAUNCH}"
    name = operators.siren_backend("cuda")
    return {
        "grad_gram": ("CUDA", built) if launch.BUILT else ("torch", f"chunked GEMM; {without}"),
        "head_gram": describe_head("cuda"),
        "siren": (name, one if launch.BUILT else copied),
        "oris": (name, built if launch.BUILT else copied),
        "memory": (name, built if launch.BUILT else f"sketches copied; {without}"),
    }
