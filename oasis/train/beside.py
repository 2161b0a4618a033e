"""A model beside the trained one that candidates are scored by (`score_with`): smaller, rounded, or
an earlier copy. It is frozen, and no part of what is trained, saved or shared among processes.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import nn

from oasis.policies import Policy
from oasis.train.models import forward_parameters, is_encoder_decoder, text_config, unwrap
from oasis.train.refusals import check_model
from oasis.train.scoring import model_inputs
from oasis.train.signals.compute import GRADS, of_head


def check_beside(
    model: nn.Module, scorer: Any, policy: Policy, layer: str, reuse_forward: bool
) -> None:
    """ValueError (TypeError where it is no module) unless `scorer` can score for `policy` what
    `model` is trained on.
    """
    if not isinstance(scorer, nn.Module):
        raise TypeError(
            f"score_with: got {scorer!r}, expected a causal language model that has been loaded "
            "(AutoModelForCausalLM.from_pretrained)"
        )
    name, needs = type(unwrap(scorer)).__name__, frozenset(policy.needs)
    trained = sorted(needs & GRADS)
    if not needs or trained or layer != "head":
        what = f"layer={layer!r}" if layer != "head" else ", ".join(trained) or "no signal at all"
        raise ValueError(
            f"score_with: got {name}, but the policy {policy.name!r} asks for {what}; expected a "
            'policy that scores by a forward alone (no gradients of trained weights, layer="head")'
        )
    if reuse_forward:
        raise ValueError(
            f"reuse_forward: got True with score_with, the forward of {name}, of which the trained "
            "model has nothing; expected one of them"
        )
    try:
        check_model(scorer, looks=True, scores=bool(of_head(needs, layer)))
    except ValueError as error:
        raise ValueError(f"score_with: {str(error).removeprefix('model: ')}") from None
    for of, one in (("model", model), ("score_with", scorer)):
        if is_encoder_decoder(one):
            raise ValueError(
                f"{of}: got an encoder-decoder, {type(unwrap(one)).__name__}, with score_with; "
                "expected causal language models"
            )
    ours, theirs = (text_config(one).vocab_size for one in (model, scorer))
    if ours != theirs:
        raise ValueError(
            f"score_with: got {name} with a vocabulary of {theirs} tokens, expected {ours} as in "
            "the trained model, whose tokenizer it must have; where the sizes differ by unused "
            f"tokens alone, call resize_token_embeddings({ours}) on it first"
        )
    if {id(p) for p in scorer.parameters()} & {id(p) for p in model.parameters()}:
        raise ValueError(
            f"score_with: got {name}, which shares weights with the trained model; expected one "
            "with its own (copy.deepcopy, before LoRA is put on)"
        )


def frozen(scorer: nn.Module, device: torch.device) -> nn.Module:
    """`scorer` on the device, in eval mode, without gradients."""
    scorer.requires_grad_(False).eval()
    elsewhere = any(weight.device != device for weight in scorer.parameters())
    return scorer.to(device) if elsewhere else scorer  # not all quantised ones can be moved


def check_inputs(model: nn.Module, scorer: nn.Module, batch: dict) -> None:
    """ValueError where `batch` has inputs of the trained `model` that `scorer` cannot be given."""
    given: Set[str] = model_inputs(model, batch).keys() - {"use_cache"}
    foreign = sorted((given - forward_parameters(scorer)) | (given & {"inputs_embeds"}))
    if foreign:
        raise ValueError(
            f"score_with: got {type(unwrap(scorer)).__name__}, which cannot be given "
            f"{', '.join(foreign)} of the batch; expected a model of the same inputs, or batches "
            "without"
        )
