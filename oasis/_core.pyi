"""The compiled core (csrc/bindings.cpp, csrc/cuda_bindings.cpp).

An `int` of a tensor is its address; what lies there is checked by `oasis.operators`, which is what
calls all this. tests/core/test_types.py compares the names with the bindings.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

from typing_extensions import Unpack

MAX_EXACT: int
LARGEST: float
PRODUCT_SLACK: float
HEAD_PANEL: int
# csrc/include/oasis/names.def: tuples of names by what they are of; "option" has (name, kind).
NAMES: dict[str, tuple[Any, ...]]

class _Step(TypedDict):
    gram: int
    given: int
    n: int
    products: bool
    raises: bool
    method: str
    ridge: float
    stop: bool
    options: Sequence[float]
    statistics: int
    counters: int
    informativeness: int
    adjusted: int
    relative: int
    probability: int
    order: int
    mask: int
    skipped: int
    threshold: int

class _BuildInfo(TypedDict):
    version: str
    compiler: str
    openmp: bool
    isa_compiled: list[str]
    isa: str
    cuda: bool
    cuda_architectures: str

def build_info() -> _BuildInfo: ...
def gram(
    data: int,
    dtype: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    wide: bool,
    out: int,
    /,
) -> None: ...
def sketch(
    data: int,
    dtype: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    first: int,
    dim: int,
    seed: int,
    exact: bool,
    out: int,
    /,
) -> None: ...
def remembered(
    *,
    gram: int,
    sketch: int,
    valid: int,
    memory: int,
    counters: int,
    n: int,
    capacity: int,
    width: int,
    ridge: float,
    left: int,
    scaled: int,
) -> None: ...
def remember(
    sketch: int,
    mask: int,
    n: int,
    width: int,
    counters: int,
    memory: int,
    capacity: int,
    /,
) -> None: ...
def inner_products(gram: int, valid: int, n: int, /) -> tuple[int, int, int]: ...
def usable(
    gram: int,
    given: int,
    scores: int,
    sketch: int,
    n: int,
    width: int,
    products: bool,
    raises: bool,
    left: int,
    informativeness: int,
    valid: int,
    skipped: int,
    /,
) -> tuple[int, int, int]: ...
def siren(
    gram: int,
    valid: int,
    n: int,
    method: str,
    ridge: float,
    floor: float,
    adjusted: int,
    order: int,
    informativeness: int,
    /,
) -> int: ...
def select(*, scores: int, fault: int, **arguments: Unpack[_Step]) -> tuple[int, int, int]: ...
def mean_field_sum(
    score: float, mean: float, square: float, linear: float, quadratic: float, n: int, /
) -> float: ...
def oris(
    informativeness: int,
    adjusted: int,
    valid: int,
    n: int,
    statistics: int,
    counters: int,
    options: Sequence[float],
    relative: int,
    probability: int,
    mask: int,
    /,
) -> int: ...
def oris_stop(
    informativeness: int,
    valid: int,
    n: int,
    statistics: int,
    counters: int,
    options: Sequence[float],
    /,
) -> float: ...
def head_block(
    float64: bool,
    /,
    *,
    logits: int,
    tokens: int,
    columns: int,
    column_stride: int,
    first: int,
    bias: int,
    scale: float,
    softcap: float,
    labels: int,
    label_columns: int,
    label_count: int,
    label_first: int,
    gathers: int,
    distinct: int,
    peak: int,
    entry_peak: int,
    maximum: int,
    label_logit: int,
    sum: int,
    weighted: int,
    squares: int,
    factor: int,
    sketch: int,
    sketch_rows: int,
    sketches: int,
    buckets: int,
    signs: int,
    vocabulary: int,
) -> None: ...
def head_rescale(products: int, factor: int, tokens: int, float64: bool, /) -> None: ...
def head_reduce(
    float64: bool,
    /,
    *,
    products: int,
    inner: int,
    gathers: int,
    label_index: int,
    tokens: int,
    distinct: int,
    offsets: int,
    samples: int,
    coefficient: int,
    label: int,
    gram: int,
) -> None: ...
def uniform(seed: int, counter: int, /) -> float: ...
def philox(seed: int, counter: int, /) -> tuple[int, int, int, int]: ...
def cuda_device_count() -> int: ...

# Where CUDA was compiled in alone (build_info()["cuda"]); other keywords are let pass.

CUDA_ONE_LAUNCH: int
CUDA_MAX_SAMPLES: int
CUDA_MAX_SKETCH_SAMPLES: int

class _Gram(TypedDict):
    data: int
    dtype: str
    samples: int
    columns: int
    row_stride: int
    add: bool
    gram: int
    workspace: int
    workspace_bytes: int
    device: int

class _Candidates(TypedDict):
    gram: int
    given: int
    scores: int
    sketch: int
    n: int
    width: int
    raises: bool
    left: int
    informativeness: int
    valid: int
    skipped: int
    products: bool
    wrong: int
    device: int

class _Siren(TypedDict):
    gram: int
    valid: int
    floor: int
    n: int
    capacity: int
    method: str
    ridge: float
    adjusted: int
    order: int
    workspace: int
    workspace_bytes: int
    device: int

class _Sketch(TypedDict):
    data: int
    dtype: str
    samples: int
    columns: int
    row_stride: int
    first: int
    dim: int
    seed: int
    exact: bool
    out: int
    workspace: int
    workspace_bytes: int
    device: int

class _Memory(TypedDict):
    gram: int
    sketch: int
    valid: int
    memory: int
    counters: int
    n: int
    capacity: int
    width: int
    ridge: float
    left: int
    scaled: int
    workspace: int
    workspace_bytes: int
    device: int

class _Remember(TypedDict):
    sketch: int
    mask: int
    counters: int
    n: int
    width: int
    capacity: int
    memory: int
    device: int

class _Oris(TypedDict):
    informativeness: int
    adjusted: int
    valid: int
    n: int
    device: int
    statistics: int
    counters: int
    options: Sequence[float]
    relative: int
    probability: int
    mask: int

def cuda_gram_workspace(**arguments: Unpack[_Gram]) -> int: ...
def cuda_gram(*, stream: int, **arguments: Unpack[_Gram]) -> None: ...
def cuda_usable(*, stream: int, **arguments: Unpack[_Candidates]) -> None: ...
def cuda_siren_workspace(**arguments: Unpack[_Siren]) -> int: ...
def cuda_siren(*, stream: int, **arguments: Unpack[_Siren]) -> None: ...
def cuda_oris(*, stream: int, **arguments: Unpack[_Oris]) -> None: ...
def cuda_select(*, stream: int, fault: int, device: int, **arguments: Unpack[_Step]) -> bool: ...
def cuda_sketch_workspace(**arguments: Unpack[_Sketch]) -> int: ...
def cuda_sketch(*, stream: int, **arguments: Unpack[_Sketch]) -> None: ...
def cuda_remembered_workspace(**arguments: Unpack[_Memory]) -> int: ...
def cuda_remembered(*, stream: int, **arguments: Unpack[_Memory]) -> None: ...
def cuda_remember(*, stream: int, **arguments: Unpack[_Remember]) -> None: ...
