"""The device and the number type that a run asks for by name."""

from __future__ import annotations

import torch

# What `head_gram` takes; "half", "float" and "double" are other names of these.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def choose_device(name: str = "auto") -> torch.device:
    """`name`, or for "auto" the GPU where there is one, else the CPU.

    ValueError where this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    there = [torch.device("cpu")]
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    if accelerator is not None:
        kind = accelerator.type
        there += [torch.device(kind, index) for index in range(torch.accelerator.device_count())]
    if not any(device.type == d.type and device.index in (None, d.index or 0) for d in there):
        expected = ", ".join(map(str, there))
        raise ValueError(
            f"device: got {name!r}, expected 'auto' or one of this machine: {expected}"
        )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`name` as a floating-point dtype; "auto" is bfloat16 where the hardware multiplies it.

    A CPU without bfloat16 instructions (AVX-512 BF16, AMX) emulates them, several times slower
    than float32. ValueError for anything else than `DTYPES`.
    """
    if name != "auto":
        found = getattr(torch, name, None)
        if found not in DTYPES:
            expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(f"dtype: got {name!r}, expected 'auto', {expected}")
        return found
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = False
    return torch.bfloat16 if native else torch.float32
