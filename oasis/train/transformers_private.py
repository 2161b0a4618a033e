"""The private attributes of `transformers.Trainer` that selection needs, all of them here.

Checked against transformers 5.0.0, 5.9.0, 5.16.1 and 5.24.0 (tests/train/test_trainer.py). Nothing
promises that the next one has them: `check` says so at the import, instead of a training in its
middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from oasis.train.atomic import failed_writes_named

METHODS = (
    *("_get_num_items_in_batch", "_inner_training_loop", "_load_from_checkpoint"),
    *("_prepare_inputs", "_save_checkpoint", "_save_rng_state"),
    "_set_signature_columns_if_needed",
)


def check(trainer: type) -> None:
    """ImportError, naming them, where the class lacks some of `METHODS`."""
    missing = [name for name in METHODS if not hasattr(trainer, name)]
    if missing:
        raise ImportError(
            f"transformers {transformers.__version__}: {trainer.__name__} has no "
            f"{', '.join(missing)}; expected a version that 'oasis-select[train]' asks for"
        )


check(Trainer)


def prepare_inputs(trainer: Trainer, batch: dict) -> dict:
    """`batch` on the trainer's device."""
    return trainer._prepare_inputs(batch)


def count_label_tokens(trainer: Trainer, batches: list[dict], device: torch.device):
    """What the loss of `batches` is to be divided by, as the Trainer counts it."""
    return trainer._get_num_items_in_batch(batches, device)


def labels_are_shifted(trainer: Trainer) -> None:
    """Have the Trainer leave the first label of a row out of that count; 5.16 asks the model."""
    trainer._loss_shifts_labels = True


def batch_size(trainer: Trainer) -> int:
    """Samples in a training batch of a process; `auto_find_batch_size` has its say."""
    return trainer._train_batch_size


def load_weights(trainer: Trainer, checkpoint: str) -> None:
    """Take the model's weights from a checkpoint."""
    trainer._load_from_checkpoint(checkpoint)


def train_loader(trainer: Trainer) -> Iterable[dict]:
    """The loader of the training that runs."""
    loader: Iterable[dict] | None = trainer.callback_handler.train_dataloader
    assert loader is not None  # as it is before a training
    return loader


def checkpointing(block: Any) -> Callable:
    """What a checkpointed block of a model is called through: function(run, hidden, ...)."""
    return block._gradient_checkpointing_func


def set_checkpointing(block: Any, function: Callable) -> None:
    """Have the block called through another."""
    block._gradient_checkpointing_func = function


if TYPE_CHECKING:

    class Behind(Trainer):
        """Whatever trainer stands behind a mixin when the program runs."""

        model: torch.nn.Module  # there once the Trainer's __init__ is through
        model_wrapped: torch.nn.Module
else:
    Behind = object


class PrivateHooks(Behind):
    """What the Trainer calls by private names, under names of ours. Goes in front of a Trainer."""

    kept_columns: tuple[str, ...] = ()  # of a dataset, that the model's forward does not take

    def save_selection_state(self, checkpoint: str) -> None:
        """A checkpoint is being written there."""
        raise NotImplementedError

    def plan_steps(self, batch_size: int) -> None:
        """Training is about to begin with batches of that size."""
        raise NotImplementedError

    def begin_selection(self) -> None:
        """Training is about to begin, from no checkpoint."""
        raise NotImplementedError

    def resume_selection(self, checkpoint: str) -> TrainOutput | None:
        """Training is about to go on from there; a result ends it at once."""
        raise NotImplementedError

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.save_selection_state(output_dir)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = self.args.output_dir
        assert folder is not None  # it has a default
        with failed_writes_named(folder):
            super()._save_checkpoint(*args, **kwargs)

    def _inner_training_loop(
        self, batch_size=None, args=None, resume_from_checkpoint=None, *rest: Any, **kwargs: Any
    ):
        self.plan_steps(self._train_batch_size if batch_size is None else batch_size)
        # Not in `_load_rng_state`: the Trainer calls that after the first batches were fetched.
        if resume_from_checkpoint is None:
            self.begin_selection()
        else:
            over = self.resume_selection(resume_from_checkpoint)
            if over is not None:
                return over
        return super()._inner_training_loop(
            batch_size, args, resume_from_checkpoint, *rest, **kwargs
        )

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns = self._signature_columns
        assert columns is not None  # they are set now
        columns += [name for name in self.kept_columns if name not in columns]
