"""Products of half types with float32 sums, as CUDA has them, on CPU tensors."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


class HalfProducts(TorchDispatchMode):
    """Takes the place of `aten::mm.dtype`, and notes every product.

    Products of two halves are exact in float32, so float32 operands sum as tensor cores do.

    Attributes:
        flops: by the type of the operands.
    """

    def __init__(self):
        super().__init__()
        self.flops: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func.overloadpacket.__name__ not in PRODUCTS:
            return func(*args, **kwargs)
        a, b = [x for x in args if isinstance(x, torch.Tensor)][-2:]
        assert a.dtype == b.dtype
        flops = 2 * a.numel() * b.shape[-1]
        self.flops[a.dtype] = self.flops.get(a.dtype, 0) + flops
        if func._overloadname not in ("dtype", "dtype_out"):
            return func(*args, **kwargs)
        assert func.overloadpacket.__name__ == "mm" and args[2] == torch.float32
        return torch.mm(a.float(), b.float(), **kwargs)
