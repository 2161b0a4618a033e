"""The operators `torch.ops.oasis.*`: schemas and fakes apart from the implementations per device.

Those of the output head are implemented by `oasis.gram.operators`.
"""

import torch

from oasis import _core
from oasis.operators import cpu, cuda, launch, schemas  # noqa: F401  (what they register)

grad_gram = torch.ops.oasis.grad_gram
siren = torch.ops.oasis.siren
oris_ = torch.ops.oasis.oris_
oris_stop = torch.ops.oasis.oris_stop
siren_oris_ = torch.ops.oasis.siren_oris_
head_gram = torch.ops.oasis.head_gram
head_partial = torch.ops.oasis.head_partial
head_merge = torch.ops.oasis.head_merge

_ISA = _core.build_info()["isa"]


def siren_backend(device_type: str) -> str:
    """What runs SIREN and ORIS on `device_type`: asked at every selection, so it stays cheap."""
    if device_type == "cpu":
        return f"C++ ({_ISA})"
    return "CUDA" if launch.BUILT else f"C++ on the CPU ({_ISA})"
