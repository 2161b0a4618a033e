"""Hidden states on disk, shared by processes and runs: one folder per model, one file per write."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn


def fingerprint(module: nn.Module, *context: object) -> str:
    """Name of what `module` computes: a digest of its class, its weights, and `context`."""
    digest = hashlib.blake2b(repr((type(module).__name__, *context)).encode(), digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


class HiddenStore:
    """Tensors by key in `folder`, read from memory-mapped safetensors files.

    A file appears by one rename, complete or not at all, and is never changed, so that any number
    of processes may read and write. Two that compute the same key both write it; either will do.

    Args:
        folder: created with the first write.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._known: set[str] = set()
        self._handles: dict[str, object] = {}

    def refresh(self) -> None:
        """Take note of the files written since the last look."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name not in self._known:
                self._known.add(path.name)
                handle = safe_open(path, framework="pt")
                self._handles.update(dict.fromkeys(handle.keys(), handle))

    def get(self, key: str) -> torch.Tensor | None:
        """The tensor of `key` (a copy, on the CPU); None where no file noted so far has it."""
        handle = self._handles.get(key)
        return None if handle is None else handle.get_tensor(key).clone()

    def put(self, tensors: dict[str, torch.Tensor]) -> None:
        """Write `tensors` as one file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex
        partial = self.folder / f"{name}.partial"
        save_file({key: tensor.cpu().contiguous() for key, tensor in tensors.items()}, partial)
        os.rename(partial, self.folder / f"{name}.safetensors")
