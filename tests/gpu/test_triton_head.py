"""The Triton kernels without a GPU: interpreted, compiled ahead of time, chosen where they run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
import triton
from comparing import cosine_scaled
from head_problems import problem
from interpreter import obstacle
from oasis.kernels.triton.blocks import ANY, TABLE
from oasis.kernels.triton.head_epilogue import epilogue_kernel
from oasis.kernels.triton.head_fold import features_kernel, fold_kernel
from oasis.kernels.triton.head_products import products_kernel
from oasis.kernels.triton.head_reduce import reduce_kernel, samples_kernel
from oasis.kernels.triton.head_results import results_kernel
from oasis.kernels.triton.head_segments import keys_kernel, segments_kernel
from oasis.kernels.triton.head_sketch import sketch_kernel
from oasis.kernels.triton.head_sketched import sketch_samples_kernel, sketch_tokens_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import oasis
from oasis import doctor
from oasis.gram.backends import choice as head_backend
from oasis.gram.backends import plain
from oasis.gram.rates import FLOAT8, HALF, TWICE, Tile

OLDER = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
INTERPRETER_OBSTACLE = obstacle(triton.__version__, numpy.__version__)
HERE = Path(__file__).resolve().parent
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@pytest.mark.skipif(
    bool(INTERPRETER_OBSTACLE), reason=f"{INTERPRETER_OBSTACLE}; CI has versions that fit"
)
@pytest.mark.parametrize(
    ("file", "least"),
    [("head", 50), ("head_options", 20), ("pieces", 3), ("folded", 10), ("tiles", 16)],
)
def test_interpreted(file, least):
    """Runs a file of tests, all of it, in a process that interprets."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OASIS_HEAD_BACKEND": "triton",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*command, str(HERE / f"interpreted_{file}.py")],
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    summary = next(line for line in done.stdout.splitlines() if " passed" in line)
    assert int(re.search(r"(\d+) passed", summary)[1]) >= least, summary
    assert "skipped" not in summary and "xfail" not in summary, summary


def test_the_interpreter_is_left_out_only_where_it_cannot_run():
    assert "numpy 2.4.6" in obstacle("3.6.0", "2.4.6")
    assert not obstacle("3.7.1", "2.5.2") and not obstacle("3.6.0", "2.3.5")


# ---- ahead of time ------------------------------------------------------------------------------

SIGNATURES = {
    keys_kernel: (
        "labels:*i64 sample:*i64 keys:*i32 poison:*fp64 tokens:i32 samples:i32 vocabulary:i32"
    ),
    segments_kernel: (
        "keys:*i32 ordered:*i32 order:*i64 labels:*i32 label_index:*i32 offsets:*i32 bounds:*i32 "
        "tokens:i32 samples:i32 parts:i32 size:i32 steps:i32"
    ),
    epilogue_kernel: (
        "logits:*fp32 logits_stride:i32 entries:*fp16 plane_stride:i32 entry_stride:i32 bias:*fp32 "
        "labels:*i32 ordered:*i32 bounds:*i32 gathers:*fp32 state:*fp64 factor:*fp32 first:i32 "
        "columns:i32 tokens:i32 scale:fp32 cap:fp32"
    ),
    fold_kernel: (
        "logits:*fp32 logits_stride:i32 bias:*fp32 labels:*i32 ordered:*i32 bounds:*i32 "
        "gathers:*fp32 state:*fp64 factor:*fp32 folds:*fp32 buckets:*i32 signs:*fp32 first:i32 "
        "columns:i32 tokens:i32 m:i32 scale:fp32 cap:fp32"
    ),
    features_kernel: (
        "folds:*fp32 gathers:*fp32 ordered:*i32 state:*fp64 features:*fp16 tokens:i32 m:i32 "
        "cap:fp32"
    ),
    products_kernel: (
        "entries:*fp16 plane_stride:i32 entry_stride:i32 products:*fp32 factor:*fp32 tokens:i32 "
        "side:i32 columns:i32 part:i32"
    ),
    results_kernel: (
        "state:*fp64 labels:*i32 owner:*i32 offsets:*i32 results:*fp64 tokens:i32 samples:i32 "
        "scale:fp32 cap:fp32"
    ),
    reduce_kernel: (
        "products:*fp32 inner:*fp32 gathers:*fp32 label_index:*i32 state:*fp64 results:*fp64 "
        "offsets:*i32 partial:*fp64 side:i32 tokens:i32 samples:i32 first_sample:i32 cap:fp32"
    ),
    sketch_kernel: (
        "entries:*fp16 plane_stride:i32 entry_stride:i32 factor:*fp32 buckets:*i32 signs:*fp32 "
        "sums:*fp32 first:i32 columns:i32 m:i32"
    ),
    sketch_tokens_kernel: (
        "deltas:*fp32 hidden:*fp32 results:*fp64 labels:*i32 owner:*i32 offsets:*i32 buckets:*i32 "
        "signs:*fp32 tokens:i32 samples:i32 m:i32"
    ),
    sketch_samples_kernel: (
        "sums:*fp32 results:*fp64 offsets:*i32 poison:*fp64 sketches:*fp64 tokens:i32 m:i32"
    ),
    samples_kernel: (
        "partial:*fp64 results:*fp64 offsets:*i32 poison:*fp64 gram:*fp64 loss:*fp64 "
        "entropy:*fp64 el2n:*fp64 correct:*i64 count:*i64 tokens:i32 samples:i32"
    ),
}
# What the launchers pass is a multiple of 16 (pointers of torch are, too), but for the last block
# of an odd vocabulary.
ALIGNED = {"logits_stride", "plane_stride", "entry_stride", "side", "first", "columns", "part"}
ALIGNED_IF_ODD = {"plane_stride", "entry_stride", "side", "first"}
# Shared memory that one program may take, and the instruction that reaches the tensor cores.
SHARED = {
    80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10
}  # fmt: skip
TENSOR_CORE = {90: "wgmma.mma_async", 100: "tcgen05.mma"}
# The machine's instruction for products of float8.
FLOAT8_CORE = {89: "QMMA", 90: "QGMMA", 100: "UTCQMMA", 120: "QMMA"}
ROWS = {**TABLE, 86: ANY, 89: ANY, 120: ANY}
TILES = [
    pytest.param(architecture, entries, tile, id=f"{architecture}-{name}-{tile.columns}")
    for architecture, blocks in ROWS.items()
    for name, entries in (("half", HALF), ("twice", TWICE), ("float8", FLOAT8))
    if entries is not FLOAT8 or architecture in FLOAT8_CORE
    for tile in blocks.rates.tiles[entries]
]


def compiled(kernel, constants, architecture, aligned=ALIGNED, float8=False, **options):
    """(PTX, cubin, bytes of shared memory) of what a launch would compile."""
    signature = dict(part.split(":") for part in SIGNATURES[kernel].split())
    if float8:
        signature["entries"] = "*fp8e4nv"
    assert [*signature, *constants] == kernel.arg_names
    place = {name: (k,) for k, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        signature | dict.fromkeys(constants, "constexpr"),
        {place[name]: value for name, value in constants.items()},
        {
            place[name]: [["tt.divisibility", 16]]
            for name, kind in signature.items()
            if kind[0] == "*" or name in aligned
        },
    )
    result = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    return result.asm["ptx"], result.asm["cubin"], result.metadata.shared


def check(kernel, constants, architecture, registers, folder, spilled=0, **options):
    """At most so many registers, none but `spilled` bytes of them on the stack, shared memory that
    fits, no atomic; returns the PTX."""
    ptx, binary, shared = compiled(kernel, constants, architecture, **options)
    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    command = [BINARIES / "cuobjdump", "--dump-resource-usage", file]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {key: int(n) for key, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    assert found["STACK"] <= spilled and found["LOCAL"] == 0, f"spills: {usage}"
    assert found["REG"] <= registers, usage
    assert shared <= SHARED[architecture]
    assert not re.search(r"\b(atom|red)\.", ptx), "an atomic: the order of its sums is not fixed"
    return ptx


def machine_code(folder):
    """What the kernel that `check` compiled last is for the machine."""
    command = [BINARIES / "nvdisasm", "-c", folder / "kernel.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    """Compiled here and now, not found in somebody's cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("architecture", TABLE)
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("cap", [False, True])
@pytest.mark.parametrize("aligned", [ALIGNED, ALIGNED_IF_ODD], ids=["aligned", "odd"])
def test_epilogue_compiles(aligned, cap, planes, architecture, tmp_path):
    blocks = TABLE[architecture]
    constants = {"HAS_BIAS": cap, "HAS_CAP": cap, "PLANES": planes, "UNIT": 1.0}
    constants["BLOCK"] = blocks.columns
    registers = blocks.capped_registers if cap else blocks.column_registers
    options = {"num_warps": blocks.column_warps, "maxnreg": registers}
    # 80 registers: three programs of 256 threads to a multiprocessor; 128: two.
    ptx = check(
        epilogue_kernel, constants, architecture, registers, tmp_path, aligned=aligned, **options
    )
    if aligned is ALIGNED:
        assert ptx.count("ld.global.v4") >= 4, "rows are not read in whole vectors"


def tile_arguments(entries, tile):
    """Constants and options of a launch of `products_kernel`."""
    constants = {"PLANES": entries.planes, "UNIT": entries.unit}
    constants |= {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth}
    return constants, {"num_warps": tile.warps, "num_stages": tile.stages}


@pytest.mark.parametrize(("architecture", "entries", "tile"), TILES)
def test_products_compile_to_tensor_cores(architecture, entries, tile, tmp_path):
    constants, options = tile_arguments(entries, tile)
    # 255: one program of 256 threads fits, whose accumulator alone takes 64 or 128. The small tiles
    # of other cards: four programs of 128 threads.
    registers = 128 if ROWS[architecture] is ANY else 255
    float8 = entries is FLOAT8
    # ptxas of Triton 3.6 leaves one pair of registers there: read once in a turn of 32 products.
    options["spilled"] = 8 if float8 and architecture == 120 and OLDER else 0
    ptx = check(
        products_kernel, constants, architecture, registers, tmp_path, float8=float8, **options
    )
    assert TENSOR_CORE.get(architecture, "mma.sync") in ptx
    assert "cp.async" in ptx, "loads are not pipelined"
    if float8:
        assert re.search(rf"\b{FLOAT8_CORE[architecture]}\b", machine_code(tmp_path))


@pytest.mark.parametrize("architecture", FLOAT8_CORE)
@pytest.mark.parametrize("cap", [False, True])
def test_the_epilogue_makes_float8(cap, architecture, tmp_path):
    blocks = ROWS[architecture]
    constants = {"HAS_BIAS": cap, "HAS_CAP": cap, "PLANES": 1, "UNIT": 256.0}
    registers = blocks.capped_registers if cap else blocks.column_registers
    options = {"num_warps": blocks.column_warps, "maxnreg": registers, "float8": True}
    constants["BLOCK"] = blocks.columns
    ptx = check(epilogue_kernel, constants, architecture, registers, tmp_path, **options)
    assert "cvt.rn.satfinite.e4m3x2" in ptx
    constants = {"PLANES": 1, "UNIT": 256.0, "BUCKETS": blocks.buckets}
    check(sketch_kernel, constants, architecture, 64, tmp_path, float8=True)


@pytest.mark.parametrize("architecture", TABLE)
@pytest.mark.parametrize("cap", [False, True])
def test_reduce_compiles(cap, architecture, tmp_path):
    blocks = TABLE[architecture]
    constants = {"HAS_CAP": cap, "ROWS": blocks.rows, "COLUMNS": blocks.reduce_columns}
    # 168: three programs of 128 threads to a multiprocessor.
    check(reduce_kernel, constants, architecture, 168, tmp_path, num_warps=4)


@pytest.mark.parametrize("architecture", TABLE)
def test_the_small_kernels_compile(architecture, tmp_path):
    blocks = TABLE[architecture]
    step, capped = {"BLOCK": blocks.tokens}, {"MEAN": True, "HAS_CAP": True}
    check(keys_kernel, step, architecture, 64, tmp_path)
    check(segments_kernel, step, architecture, 64, tmp_path)
    check(results_kernel, capped | step, architecture, 128, tmp_path)
    planes = {"PLANES": 2, "UNIT": 1.0, "BUCKETS": blocks.buckets}
    check(sketch_kernel, planes, architecture, 64, tmp_path)
    sketch = step | {"BUCKETS": blocks.buckets}
    check(sketch_tokens_kernel, sketch, architecture, 64, tmp_path)
    check(sketch_samples_kernel, sketch, architecture, 64, tmp_path)
    sums = {"ROWS": blocks.rows, "BLOCK": blocks.reduce_columns}
    check(samples_kernel, sums, architecture, 128, tmp_path)


@pytest.mark.parametrize("architecture", TABLE)
@pytest.mark.parametrize("cap", [False, True])
def test_the_fold_compiles(cap, architecture, tmp_path):
    blocks = TABLE[architecture]
    constants = {"HAS_BIAS": cap, "HAS_CAP": cap, "AGAIN": False, "BLOCK": blocks.folds}
    registers = blocks.capped_registers if cap else blocks.column_registers
    options = {"num_warps": blocks.column_warps, "maxnreg": registers}
    check(fold_kernel, constants, architecture, registers, tmp_path, **options)
    check(features_kernel, {"HAS_CAP": cap, "BLOCK": blocks.folds}, architecture, 64, tmp_path)


def test_a_spill_is_noticed(tmp_path):
    # The net holds: two warps cannot keep a tile of 128 x 128 numbers and its operands.
    constants, options = tile_arguments(HALF, Tile(128, 128, 32, warps=2, stages=2))
    with pytest.raises(AssertionError, match="spills"):
        check(products_kernel, constants, 80, 255, tmp_path, **options)


# ---- dispatch -----------------------------------------------------------------------------------

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def asked(monkeypatch):
    """Sets OASIS_HEAD_BACKEND (None: not set) in a process without the interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def set_to(value):
        if value is None:
            monkeypatch.delenv("OASIS_HEAD_BACKEND", raising=False)
        else:
            monkeypatch.setenv("OASIS_HEAD_BACKEND", value)

    set_to(None)
    return set_to


def test_choice_by_device_and_type(asked):
    assert head_backend.choose(CPU)[0] == "compiled"
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert head_backend.choose(CUDA, dtype)[0] == "triton"
    name, why = head_backend.choose(CUDA, torch.float64)
    assert name == "torch" and "float64" in why
    assert doctor.backends("cuda")["head_gram"][0] == "Triton + torch GEMM"


def test_without_triton_torch_takes_over_and_says_so(asked, monkeypatch, caplog):
    monkeypatch.setattr(head_backend, "_triton_installed", lambda: False)
    head_backend.tell_once.cache_clear()
    for _ in range(2):
        name, why = head_backend.choose(CUDA)
        assert name == "torch" and "Triton is not installed" in why
    assert doctor.backends("cuda")["head_gram"] == ("torch", why)
    assert caplog.text.count("Triton is not installed") == 1


def test_a_choice_that_cannot_be_honoured_raises(asked, monkeypatch, generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=9, dtype=torch.float32)
    asked("triton")
    with pytest.raises(RuntimeError, match="OASIS_HEAD_BACKEND=triton.*TRITON_INTERPRET=1"):
        oasis.head_gram(**arguments)
    assert doctor.backends("cpu")["head_gram"][0] == "none"  # the doctor tells, and does not fall
    monkeypatch.setattr(head_backend, "_triton_installed", lambda: False)
    with pytest.raises(RuntimeError, match="OASIS_HEAD_BACKEND=triton: Triton is not installed"):
        head_backend.choose(CUDA)
    asked("cuda")
    with pytest.raises(ValueError, match="OASIS_HEAD_BACKEND: got 'cuda', expected .*triton"):
        oasis.head_gram(**arguments)


def test_torch_on_request(asked, monkeypatch, generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=9)
    want = oasis.head_gram(**arguments)
    asked("torch")
    calls = []
    block = plain.Epilogue.block
    monkeypatch.setattr(
        plain.Epilogue, "block", lambda *a: calls.append(1) or block(*a)
    )  # fmt: skip
    got = oasis.head_gram(**arguments)
    assert calls and cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-12


def test_importing_oasis_leaves_triton_alone():
    code = "import sys, oasis; sys.exit('triton' in sys.modules or 'oasis.kernels' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
