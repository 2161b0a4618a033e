"""What nvcc made of the kernels: no spills, registers within bounds, for every architecture.

Read from the installed extension by cuobjdump (of the CUDA toolkit or of Triton); where neither is
there, or the extension was built without CUDA, the launchers are compiled once more.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oasis import _core

from .device import INCLUDES, LAUNCHERS

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Registers per thread that each kernel may take. 64 Ki of them make a processor: the small Gram
# tile is planned for 5 blocks of 96 or 128 threads, exact SIREN for one block of 512.
BOUNDS = {
    "gram_kernel.*CudaCores.*Float64.*": 208,
    "gram_kernel.*CudaCores.*Float32ELi16E.*": 120,
    "gram_kernel.*CudaCores.*Float32ELi64ELb1E.*": 136,
    "gram_kernel.*CudaCores.*Float32ELi64ELb0E.*": 160,
    "gram_kernel.*TensorCores.*": 102,  # 5 blocks of 128 threads, 2 of 320, 1 of 512
    "gram_reduce_kernel.*": 48,
    "siren_exact_kernel.*": 128,
    "select_exact_kernel.*": 128,
    "siren_prefix_kernel.*": 128,
    "siren_extend_kernel.*": 192,  # sm_100; 128 at most on the others
    "siren_finish_kernel.*": 64,
    "siren_write_kernel.*": 64,
    "siren_rule_kernel.*": 128,
    "select_rule_kernel.*": 128,
    "siren_mean_field_kernel.*": 128,
    "select_mean_field_kernel.*": 128,
    "oris_kernel.*": 64,
    "memory_(unit|cosine|left)_kernel.*": 64,
    "memory_factor_kernel.*": 128,  # sm_100; 64 at most on the others
    "remember_kernel.*": 64,
    "sketch_kernel.*": 64,
    "sketch_reduce_kernel.*": 48,
    "usable_kernel.*": 64,
}
KERNELS = 12 + 3 + 12 + 5 + 5


def cuobjdump() -> str | None:
    beside = Path(shutil.which("nvcc")).resolve().parent / "cuobjdump"
    triton = importlib.util.find_spec("triton")
    bundled = triton and Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    found = [shutil.which("cuobjdump"), beside, bundled]
    return next((str(p) for p in found if p and Path(p).exists()), None)


def from_binary(program: str, binary) -> dict[tuple[str, str], tuple[int, int]]:
    """{(architecture, mangled kernel): (registers, bytes of stack)}."""
    text = subprocess.run(
        [program, "--dump-resource-usage", str(binary)], check=True, capture_output=True, text=True
    ).stdout
    found, architecture, function = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            function = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", line):
            found[architecture, function] = (int(match[1]), int(match[2]) + int(match[3]))
    return found


def from_compiler(source, architecture: str, folder: Path):
    """The same, as ptxas reports it; spills count as stack."""
    command = ["nvcc", "-std=c++17", "-O3", f"-arch={architecture}", "-cubin", "-Xptxas", "-v"]
    command += [f"-I{i}" for i in INCLUDES[1:]]
    command += ["-o", str(folder / "out.cubin"), str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    pattern = (
        r"entry function '(\S+)' for '\S+'.*?(\d+) bytes stack frame, (\d+) bytes spill stores"
        r".*?Used (\d+) registers"
    )
    return {
        (architecture, name): (int(registers), int(stack) + int(spills))
        for name, stack, spills, registers in re.findall(pattern, text, re.DOTALL)
    }


@pytest.fixture(scope="module")
def usage(tmp_path_factory):
    program = cuobjdump()
    if _core.build_info()["cuda"] and program:
        return from_binary(program, _core.__file__)
    folder, found = tmp_path_factory.mktemp("cubins"), {}
    for architecture in ARCHITECTURES:
        for launcher in LAUNCHERS:
            found |= from_compiler(launcher, architecture, folder)
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_spills_and_bounded_registers(usage, architecture):
    kernels = {name: used for (where, name), used in usage.items() if where == architecture}
    assert len(kernels) == KERNELS, sorted(kernels)
    missing = set(BOUNDS)
    for name, (registers, stack) in kernels.items():
        matching = [p for p in BOUNDS if re.search(p, name)]
        assert len(matching) == 1, f"{name}: expected in one line of BOUNDS, found in {matching}"
        missing -= set(matching)
        assert stack == 0, f"{name}: {stack} bytes of stack"
        assert registers <= BOUNDS[matching[0]], f"{name}: {registers} registers"
    assert not missing


def test_a_kernel_that_spills_is_seen(tmp_path):
    source = tmp_path / "spill.cu"
    source.write_text(
        "__global__ void __launch_bounds__(1024, 2) spill(double* x) {\n"
        "  double v[64];\n"
        "  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];\n"
        "  __syncthreads();\n"
        "  for (int i = 0; i < 64; ++i) x[v[63 - i] > 0] += v[i] * v[(i * 7) % 64];\n"
        "}\n"
    )
    reports = [from_compiler(source, "sm_90", tmp_path)]
    if program := cuobjdump():
        reports.append(from_binary(program, tmp_path / "out.cubin"))
    for report in reports:
        ((_, stack),) = report.values()
        assert stack > 0
