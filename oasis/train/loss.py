"""The training loss: summed cross-entropy over the selected label tokens, normalised by us.

Several models ignore `num_items_in_batch`, and a mean over a sub-batch of which nothing is
selected is NaN; a sum is zero, with zero gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer

from oasis.train.batch.columns import WEIGHT
from oasis.train.batch.rows import as_rows, has_encoder
from oasis.train.batch.subbatch import targets
from oasis.train.models import base_model, prompt_length, text_config
from oasis.train.scoring import check_length, head_hook, model_inputs


def summed_cross_entropy(
    model: nn.Module,
    batch: dict,
    *,
    gather: bool = True,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Any]:
    """Forward `batch` and sum the cross-entropy over its label tokens (0-d tensor, nats), each
    token times its factor where the batch has `WEIGHT` [N, L].

    With `gather`, logits are computed at the positions that predict a label and nowhere else, and
    the model's output holds those, [1, T, V]; otherwise all of them, [N, L, V].

    Returns:
        the sum, the number of label tokens (0-d int64), and the output of the model.
    """
    whole, batch = batch, as_rows(model, batch)
    labels = batch["labels"]
    where = targets(labels)
    gathered = False

    def pass_on(_: nn.Module, hidden: Tensor) -> Tensor:
        nonlocal gathered
        check_length(hidden, labels)
        gathered = True
        return hidden[where].unsqueeze(0)

    if gather:
        with head_hook(model, pass_on):
            output = model(**model_inputs(model, batch))
    else:
        output = model(**model_inputs(model, batch))
    # A hook that a compiled model did not see leaves the logits whole.
    logits = output.logits[0] if gathered else output.logits[:, prompt_length(model) :][where]
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    wanted = labels.roll(-1, dims=1)[where]
    weight = batch.get(WEIGHT)
    if weight is None:
        loss = F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=label_smoothing)
    else:
        losses = F.cross_entropy(logits, wanted, reduction="none", label_smoothing=label_smoothing)
        loss = (losses * weight.to(losses)[where]).sum()
    if not gathered and has_encoder(batch) and not has_encoder(whole):
        output.logits = output.logits[:, :-1]  # one for each label, as the model's own
    return loss, where.sum(), output


def router_loss(model: nn.Module, output: Any) -> Tensor | float:
    """The balancing loss of a mixture of experts, times its coefficient, where the model's
    configuration asks for it (`output_router_logits`); else 0.
    """
    found = getattr(output, "aux_loss", None)
    if found is None:
        return 0.0
    base = base_model(model)
    config = text_config(model)
    return found * getattr(base, "router_aux_loss_coef", getattr(config, "router_aux_loss_coef", 0))


def loss_owner(cls: type, mixin: type) -> type:
    """The class that says what the loss of the trainer `cls` is: `mixin` where the loss would be
    the plain Trainer's, else the one with a `compute_loss` of its own, before or behind it.
    """
    has = [base for base in cls.__mro__ if "compute_loss" in vars(base)]
    at = has.index(mixin)
    if at > 0:
        return has[0]
    return mixin if has[1] is Trainer else has[1]
