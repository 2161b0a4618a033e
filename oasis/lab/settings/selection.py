"""Settings of who selects, and by what."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from oasis import policies
from oasis.lab.settings.errors import nearest
from oasis.lab.settings.kinds import (
    ModelName,
    Must,
    Number,
    Positive,
    Seed,
    Share,
    Text,
    one_of,
)
from oasis.lab.settings.model import Scope, Settings, setting
from oasis.train.names import LAYERS, MODES

VARIES, COLUMN = Scope.VARIES, Scope.COLUMN


def _policy(name: str) -> str:
    if name not in policies.names():
        known = policies.names()
        raise ValueError(f"got {name!r}, expected one of {', '.join(known)}{nearest(name, known)}")
    return name


PolicyName = Annotated[Text, AfterValidator(_policy), Must("the name of a policy")]


class Selection(Settings):
    """Selection: who selects, and by what."""

    policy: PolicyName = setting(
        "oasis", "Who selects ([policies.md](policies.md)).", VARIES, "name it under `policies`"
    )
    ratio: Share = setting(0.25, "Fraction of the candidates to train on.", VARIES, "set `ratios`")
    policy_options: dict[str, Any] = setting(
        {}, "Further options of the policy.", VARIES, "set `options` of an entry of `policies`"
    )
    mode: Annotated[str, one_of(*MODES)] = setting(
        "step",
        "Steps that train on what is selected of a candidate batch each, or (fill) on `batch_size` "
        "selected samples each: `ratio` as many steps ([training.md](training.md)).",
        COLUMN,
    )
    layer: Annotated[str, one_of(*LAYERS)] = setting(
        "head",
        "Whose gradients score: the output head's, from a forward, or those of the LoRA weights of "
        "the last block.",
    )
    seed: Seed = setting(
        0,
        "Of the policy's draws, the order of arrival, the memory's draws and LoRA's first weights.",
        VARIES,
        "set `seeds`",
    )


class Scoring(Settings):
    """Scoring: what it costs."""

    reuse_forward: bool = setting(
        False,
        "With `training: {gradient_checkpointing: true}`, train on what the scoring forward has "
        "already computed of the selected samples: the same losses, less to compute.",
        VARIES,
    )
    score_batch_size: Positive | None = setting(
        None, "Score sorted by length, so many at a time; null: all candidates at once.", VARIES
    )
    score_depth: Positive | None = setting(
        None, "Score by the output of the first so many blocks; null: of all."
    )
    score_with: ModelName | None = setting(
        None, "The model that scores, of the same tokenizer, frozen; null: the trained one."
    )
    rescore: (
        Annotated[Number, Must("a number between 0 and 1", lambda share: 0 < share < 1)] | None
    ) = setting(
        None,
        "Of the candidates of a batch that return, the share that is scored again, those with the "
        "highest last scores; null: all.",
    )
