"""Training with selection on top of `transformers` (install the extra: `oasis-select[train]`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .trainer import SelectionMixin, SelectionTrainer

__all__ = ["SelectionMixin", "SelectionTrainer"]


def __getattr__(name: str):
    # Late, because transformers takes seconds to import and not all of this package needs it.
    if name in __all__:
        from . import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
