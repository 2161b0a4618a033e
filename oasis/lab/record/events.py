"""Every event of a run's record, with its fields, and what a line of a record says.

Not-a-number and infinities are null in a record. The events "selection" and "step" come from the
trainer (oasis/train/events.py), the others from the run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

# Of the record, its manifests and what a report writes; 1 is that of files that have none.
VERSION = 3

Number = float | None


class Start(TypedDict):
    """The first: which run it is. `boundaries`: steps at which each task ends; `held_out`: examples
    that each task is evaluated on; `answers`: how often each answer comes in a task's training
    examples, where held-out ones are balanced over the answers; `data` and `rows`: a digest of rows
    of one's own, and what was said of them.
    """

    type: Literal["start"]
    version: NotRequired[int]
    policy: str
    label: NotRequired[str]
    ratio: Number
    seed: int | None
    tasks: list[str]
    boundaries: list[int]
    held_out: NotRequired[dict[str, int]]
    answers: NotRequired[dict[str, dict[str, int]]]
    data: NotRequired[str]
    rows: NotRequired[list[str]]
    model: str
    device: str


class Selection(TypedDict):
    """One candidate batch, counted from 0, of the step (from 1) that trains on it. Lists are by
    candidate; `key`: where each comes from (file and line); `text`: how each begins, null where
    an earlier batch had it; `redundant`: of those that what they share with a pick has left out,
    the pick's place in the batch, the cosine of the two gradients, and the share of its
    informativeness that was taken off; `unscored`: places of those that a run with `rescore` has
    not scored again; `tokens`: label tokens of all; `skipped`: candidates that are not finite.
    """

    type: Literal["selection"]
    batch: int
    step: int
    task: list[int | None] | None
    item: NotRequired[list[int] | None]
    key: NotRequired[list[str]]
    text: NotRequired[list[str | None]]
    redundant: NotRequired[list[tuple[int, float, float] | None] | None]
    unscored: NotRequired[list[int]]
    selected: list[bool]
    informativeness: list[Number] | None
    relative: list[Number] | None
    probability: list[Number] | None
    threshold: Number
    mean: Number
    deviation: Number
    tokens: int
    skipped: int
    seconds: float


class Step(TypedDict):
    """One optimizer step, counted from 1; `loss` null where nothing was selected. `seconds`: after
    its candidates were chosen from; `score_seconds`: until then, without the fetching;
    `padding_share`: of the positions of the candidates.
    """

    type: Literal["step"]
    step: int
    loss: Number
    seconds: float
    score_seconds: NotRequired[float]
    padding_share: NotRequired[float]
    samples: int
    tokens: int


class Measures(TypedDict):
    """How good a model is, by task: accuracies in [0, 1]; of tasks with choices `answers`, by
    answer [right, all] held-out examples, from which macro and micro accuracy come; of tasks in
    free text the held-out loss, in nats per label token.
    """

    accuracy: dict[str, Number]
    answers: NotRequired[dict[str, dict[str, list[int]]]]
    loss: NotRequired[dict[str, Number]]


class Evaluation(Measures):
    """How good the model is after a task (its index; -1: before training)."""

    type: Literal["evaluation"]
    step: int
    after_task: int
    seconds: float


class Probe(Measures):
    """How good the model is at all tasks within a task (`probes`)."""

    type: Literal["probe"]
    step: int
    seconds: float


class End(TypedDict):
    """The last: what the run came to; `loss`: mean held-out loss over the tasks in free text. From
    `tokens` on see `accounts`.
    """

    type: Literal["end"]
    a_last: NotRequired[Number]
    a_avg: NotRequired[Number]
    loss: NotRequired[Number]
    candidates: NotRequired[int]
    selected: NotRequired[int]
    seconds: float
    score_seconds: NotRequired[float]
    train_seconds: NotRequired[float]
    evaluation_seconds: NotRequired[float]
    forward_seconds: NotRequired[Number]
    tokens: NotRequired[int]
    forgetting: NotRequired[Number]
    backward_transfer: NotRequired[Number]
    skew: NotRequired[Number]
    score_flops: NotRequired[Number]
    train_flops: NotRequired[Number]
    density: NotRequired[Number]
    bandwidth: NotRequired[Number]


Event = Annotated[Start | Selection | Step | Evaluation | Probe | End, Field(discriminator="type")]
# Fields of a later version of this package pass by.
_EVENTS: TypeAdapter[Event] = TypeAdapter(Event, config=ConfigDict(strict=True, extra="ignore"))
_KIND: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
KINDS = ("start", "selection", "step", "evaluation", "probe", "end")


def parse(line: str | bytes) -> Event | None:
    """The event of a line; None for one of a kind that there is none of yet.

    Raises:
        ValueError: it is no event, in one line.
    """
    try:
        kind = _KIND.validate_json(line).get("type")
        if isinstance(kind, str) and kind not in KINDS:
            return None
        return _EVENTS.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
