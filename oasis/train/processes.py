"""What the processes of a training tell each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oasis.train import transformers_private


class Processes(transformers_private.Behind):
    """Of the trainer that this is in front of."""

    def _over_processes(self, values: Sequence[float]) -> torch.Tensor:
        """These numbers, rounded down, of all processes, [processes, len(values)] int64."""
        found = torch.tensor([int(value) for value in values])
        if self.args.world_size > 1:
            gathered = self.accelerator.gather(found.to(self.args.device))
            assert isinstance(gathered, torch.Tensor)  # of one tensor
            found = gathered.cpu()
        return found.view(-1, len(values))

    def _everywhere(self, here: bool) -> bool:
        """Whether what is true here is true on every process."""
        return bool(self._over_processes([here]).all())
