"""The extra `[train]`: what it brings (pyproject.toml), and what is said where it is missing."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

MISSING_EXTRA = "needs the extra [train]: pip install 'oasis-select[train]'"

# Where the module has another name than the package, and one that comes along.
_MODULES = {
    "pyyaml": ["yaml"],
    "scikit-learn": ["sklearn"],
    "jinja2": ["jinja2", "markupsafe"],
    "pillow": ["PIL"],
}


@cache
def packages() -> tuple[str, ...]:
    """The packages that the extra asks for, as the installed distribution says."""
    asked = [r.partition(";") for r in metadata.requires("oasis-select") or []]
    ours = [name for name, _, when in asked if re.search(r"extra\s*==\s*['\"]train['\"]", when)]
    return tuple(re.sub(r"[^\w.-].*", "", name.strip()).lower() for name in ours)


def modules() -> frozenset[str]:
    """The top-level modules of those packages."""
    return frozenset(name for package in packages() for name in _MODULES.get(package, [package]))


def from_extra(error: ModuleNotFoundError) -> bool:
    """Whether the module that was not found is one that the extra installs.

    Any other missing module is our fault and keeps its traceback.
    """
    return (error.name or "").partition(".")[0] in modules()
