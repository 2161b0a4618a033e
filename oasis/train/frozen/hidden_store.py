"""Hidden states on disk, shared by processes and runs: one folder per model, one file per write."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from oasis.train.atomic import failed_writes_named, replacing

logger = logging.getLogger(__name__)


def fingerprint(module: nn.Module, *context: object) -> str:
    """Name of what `module` computes: a digest of its class, its weights, and `context`."""
    digest = _digest(repr((type(module).__name__, *context)).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(_content(name, tensor))
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of how a tokenizer makes ids of a text."""
    special = str(tokenizer.special_tokens_map)
    parts: dict[str, object] = {"class": type(tokenizer).__name__, "special": special}
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        rules = json.loads(backend.to_str())
        # The last call's own, which would make another tokenizer of it each time.
        parts |= {key: rules[key] for key in rules if key not in ("padding", "truncation")}
    else:
        parts["vocabulary"] = tokenizer.get_vocab()
    return _digest(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class HiddenStore:
    """Tensors by key in a folder of `folder`, read from memory-mapped safetensors files.

    A file appears by one rename, complete or not at all, and is never changed, so that any number
    of processes may read and write. Two that compute the same key both write it; either will do.
    Each file says what its states are of and holds a digest of each: one that cannot be read is
    set aside, and states that are of something else, not finite or not what was written are as
    good as missing. Both are logged.

    Args:
        folder: created with the first write; the store is in a folder inside named after `of`.
        of: what the states are of (model, layer, dtype, tokenizer).
    """

    def __init__(self, folder: str | Path, of: Mapping[str, str]) -> None:
        self.of = json.dumps(dict(of), sort_keys=True)
        self.folder = Path(folder) / _digest(self.of.encode()).hexdigest()
        self._known: set[str] = set()
        self._files: dict[str, list[tuple[Path, Any, str]]] = {}  # by key, with its digest

    def refresh(self) -> None:
        """Take note of the files written since the last look."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name in self._known:
                continue
            self._known.add(path.name)
            try:
                handle = safe_open(path, framework="pt")
                about = handle.metadata() or {}
                digests = json.loads(about.get("digests", "{}"))
            except (SafetensorError, OSError, ValueError) as error:
                logger.warning("%s is damaged and set aside (%s)", path, error)
                with contextlib.suppress(OSError):  # another process was first, or may not
                    path.replace(path.with_suffix(".damaged"))
                continue
            if about.get("of") != self.of:
                logger.warning("%s is not used: its states are of %s", path, about.get("of"))
                continue
            for key in handle.keys():  # noqa: SIM118 (no mapping)
                self._files.setdefault(key, []).append((path, handle, digests.get(key)))

    def get(self, key: str) -> torch.Tensor | None:
        """The tensor of `key` (a copy, on the CPU); None where no file noted so far has it."""
        for path, handle, digest in list(self._files.get(key, ())):
            tensor = handle.get_tensor(key).clone()
            if _digest(_content(key, tensor)).hexdigest() == digest and tensor.isfinite().all():
                return tensor
            logger.warning("%s: the states %s are damaged and computed anew", path, key)
            self._files[key].remove((path, handle, digest))
        return None

    def put(self, tensors: dict[str, torch.Tensor]) -> None:
        """Write `tensors` as one file, those that are finite."""
        tensors = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
        tensors = {key: tensor for key, tensor in tensors.items() if tensor.isfinite().all()}
        if not tensors:
            return
        digests = {
            key: _digest(_content(key, tensor)).hexdigest() for key, tensor in tensors.items()
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{uuid.uuid4().hex}.safetensors"
        with failed_writes_named(self.folder), replacing(path) as partial:
            save_file(tensors, partial, {"of": self.of, "digests": json.dumps(digests)})


def _digest(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _content(name: str, tensor: torch.Tensor) -> bytes:
    head = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
    return head + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
