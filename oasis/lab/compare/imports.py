"""Modules of the user's own, which register policies and tasks in every process that needs them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


def load_modules(names: Sequence[str]) -> None:
    """Import each module, or run each .py file, once per process.

    ValueError naming the entry where there is no such file or module; what goes wrong inside one
    comes out as it is.
    """
    for name in names:
        if not name.endswith(".py"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name and not name.startswith(error.name):
                    raise
                raise ValueError(f"no module {name!r}; expected one, or a file") from error
            continue
        path = Path(name).resolve()
        if not path.is_file():
            raise ValueError(f"{name!r} does not exist; expected a module or a .py file")
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
        module_name = f"oasis_import_{path.stem}_{digest}"
        if module_name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
