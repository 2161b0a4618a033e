"""The extra `[train]`: what it brings, and what is said where it is missing."""

from __future__ import annotations

MISSING_EXTRA = "needs the extra [train]: pip install 'oasis-select[train]'"

# Modules that the extra brings. Any other missing module is our fault and keeps its traceback.
EXTRA_MODULES = frozenset(
    {
        *("accelerate", "filelock", "gguf", "jinja2", "markupsafe", "matplotlib", "pandas"),
        *(
            "peft",
            "pyarrow",
            "rich",
            "safetensors",
            "scipy",
            "sentencepiece",
            "sklearn",
            "transformers",
            "typer",
            "yaml",
        ),
    }
)


def from_extra(error: ModuleNotFoundError) -> bool:
    """Whether the module that was not found is one that the extra `[train]` installs."""
    return (error.name or "").partition(".")[0] in EXTRA_MODULES
