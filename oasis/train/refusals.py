"""Trainers and models that selection cannot go with: named before anything is trained."""

from __future__ import annotations

import re

from torch import nn
from transformers import Trainer, TrainingArguments

from oasis.train.head import head_weight
from oasis.train.models import base_model, is_encoder_decoder, prompt_config, unwrap

PLAIN = {"SFTTrainer", "BaseTrainer", "_BaseTrainer"}  # of TRL: what a step is made of is a batch
# transformers names a class after its head; all of these predict something else than the next token
OTHER_HEAD = re.compile(
    r"For(MaskedLM|PreTraining|NextSentencePrediction|MultipleChoice|QuestionAnswering|"
    r"(\w*)Classification|RewardModel)$|(RewardModel|ValueHead|DoubleHeadsModel)$"
)


def check_order(cls: type, mixin: type) -> None:
    """TypeError where a trainer comes before `mixin` in the bases of `cls`: its methods would hide
    those of the mixin, and nothing would be selected.
    """
    for base in cls.__mro__[: cls.__mro__.index(mixin)]:
        if issubclass(base, Trainer) and not issubclass(base, mixin):
            raise TypeError(
                f"class {cls.__name__}: got {base.__name__} before {mixin.__name__} in its bases, "
                f"expected class {cls.__name__}({mixin.__name__}, {base.__name__})"
            )


def check_trainer(cls: type) -> None:
    """TypeError for trainers whose samples are pairs, prompts or generated texts (DPO, KTO, GRPO,
    reward, distillation): a row of their batches is no sample with labels of its own.
    """
    for base in cls.__mro__:
        foreign = base.__module__.split(".")[0] == "trl" and issubclass(base, Trainer)
        if foreign and base.__name__ not in PLAIN:
            raise TypeError(
                f"class {cls.__name__}: got {base.__name__}, whose batches are not rows of tokens "
                "with labels to choose from; expected transformers.Trainer, trl.SFTTrainer or a "
                "trainer derived from them"
            )


def check_arguments(args: TrainingArguments) -> None:
    """ValueError for arguments under which rows cannot be told apart."""
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs in one process (DataParallel): start one process per GPU "
            "with torchrun, or show this one a single GPU (CUDA_VISIBLE_DEVICES)"
        )
    if getattr(args, "packing", False) and getattr(args, "packing_strategy", "") == "wrapped":
        raise ValueError(
            "packing_strategy: got 'wrapped', which cuts texts anywhere and does not say where "
            "they begin, so that there are no samples to choose from; expected 'bfd' or 'bfd_split'"
        )


def check_model(model: nn.Module, looks: bool, scores: bool) -> None:
    """ValueError unless `model` predicts the next token; where its policy `looks` at it, one with
    an output head; where it `scores` by that head, one whose weight can be read.
    """
    base = base_model(model)
    for cls in type(base).__mro__:
        if OTHER_HEAD.search(cls.__name__):
            raise ValueError(
                f"model: got {type(base).__name__}, whose head does not predict the next token; "
                "expected a causal language model (AutoModelForCausalLM)"
            )
    _check_prompt(model)
    head = getattr(unwrap(model), "get_output_embeddings", lambda: None)()
    if looks and head is None:
        raise ValueError(
            f"model: got {type(model).__name__}, expected a causal language model with an "
            "output head (get_output_embeddings), or a policy that scores nothing (random, full)"
        )
    # Under ZeRO-3 the weights are elsewhere until the forward.
    if scores and head is not None and not any(hasattr(p, "ds_id") for p in head.parameters()):
        head_weight(head)


def _check_prompt(model: nn.Module) -> None:
    """ValueError for a learned prompt of PEFT that asks for more than a batch of rows has."""
    prompt = prompt_config(model)
    if prompt is None:
        return
    kind = getattr(prompt.peft_type, "value", prompt.peft_type)
    if kind in ("CPT", "MULTITASK_PROMPT_TUNING") or is_encoder_decoder(model):
        raise ValueError(
            f"model: got a learned prompt of the kind {kind}, expected PROMPT_TUNING, P_TUNING or "
            "PREFIX_TUNING on a causal language model, or LoRA"
        )
