"""Checkpoints of a training with selection: what is written beside the Trainer's, and taken up."""

from __future__ import annotations

import os

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput

from oasis.train import transformers_private
from oasis.train.state import SelectionState


class SelectionCheckpoints(transformers_private.Behind):
    """Of the trainer that this is in front of."""

    _selection: SelectionState

    def begin_selection(self) -> None:
        """A training begins: nothing is left of earlier ones."""
        raise NotImplementedError

    def save_selection_state(self, checkpoint: str) -> None:
        """Write policy and counts into a checkpoint, one file for each process."""
        self._selection.save(checkpoint)

    def restore(self, checkpoint: str) -> None:
        """Take weights, policy and counts from a checkpoint, without training on from there."""
        transformers_private.load_weights(self, checkpoint)
        self.begin_selection()
        self._selection.load(checkpoint)
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))

    def resume_selection(self, checkpoint: str) -> TrainOutput | None:
        """Take policy and counts from a checkpoint; its result where the training is over there."""
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
        # The Trainer would begin the stream again, and train past the end.
        if 0 < self.args.max_steps <= state.global_step:
            self.restore(checkpoint)
            self.is_in_train = False
            return TrainOutput(state.global_step, 0.0, {})
        self.begin_selection()
        self._selection.load(checkpoint)
        return None
