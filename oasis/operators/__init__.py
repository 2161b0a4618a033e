"""The operators `torch.ops.oasis.*`: schemas and fakes apart from the implementations per device.

Those of the output head are implemented by `oasis.gram.operators`.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from oasis import _core
from oasis.operators import (  # noqa: F401  (what they register)
    candidates,
    cpu,
    cuda,
    launch,
    memory,
    schemas,
)

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]
Five: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Seven: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Eight: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

# The operators themselves, with nothing around them at a call. What they take is in their schemas,
# which torch checks, so the results alone are typed here.
grad_gram: Callable[[Sequence[Tensor]], Tensor] = torch.ops.oasis.grad_gram
grad_sketch: Callable[[Sequence[Tensor], int, int], Tensor] = torch.ops.oasis.grad_sketch
remembered: Callable[..., tuple[Tensor, Tensor]] = torch.ops.oasis.remembered
remember_: Callable[[Tensor, Tensor, Tensor, Tensor], None] = torch.ops.oasis.remember_
inner_products: Callable[..., tuple[Tensor, Tensor]] = torch.ops.oasis.inner_products
usable: Callable[..., Five] = torch.ops.oasis.usable
siren: Callable[..., tuple[Tensor, Tensor]] = torch.ops.oasis.siren
oris_: Callable[..., Three] = torch.ops.oasis.oris_
oris_stop: Callable[..., Tensor] = torch.ops.oasis.oris_stop
select_: Callable[..., tuple[Tensor, ...]] = torch.ops.oasis.select_
head_gram: Callable[..., Seven] = torch.ops.oasis.head_gram
head_partial: Callable[..., Eight] = torch.ops.oasis.head_partial
head_merge: Callable[..., Seven] = torch.ops.oasis.head_merge

_ISA = _core.build_info()["isa"]


def siren_backend(device_type: str) -> str:
    """What runs SIREN and ORIS on `device_type`: asked at every selection, so it stays cheap."""
    if device_type == "cpu":
        return f"C++ ({_ISA})"
    return "CUDA" if launch.BUILT else f"C++ on the CPU ({_ISA})"
