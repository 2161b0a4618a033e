"""One pass over rows: candidate batches are scored, the policy chooses, its rows are kept."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from oasis.lab import model as models
from oasis.lab.data.own.encoder import Encoder
from oasis.lab.data.own.fields import Sample
from oasis.lab.data.own.load import Counts, samples
from oasis.lab.data.own.rows import Row
from oasis.lab.data.own.tokens import Encoded
from oasis.lab.data.shown import shown
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.record.lock import locked
from oasis.lab.record.log import finite
from oasis.lab.select.files import Files, State
from oasis.lab.select.score import Scorer, reasons
from oasis.lab.select.settings import SelectSettings
from oasis.policies.base import wants_length

SAVE_SECONDS = 5.0  # between two states on disk

Samples = Iterator[tuple[Row, Sample]]


@dataclass(kw_only=True)
class Outcome(Counts):
    """What came of a selection. `rows` that were read are candidates, or empty, or `dropped` or
    `too_long` (with images); of the candidates some were `cut` to `max_length` tokens for their
    score, and written whole.
    """

    out: Path
    record: Path
    kept: int = 0
    seconds: float = 0.0

    @property
    def candidates(self) -> int:
        return self.rows - self.empty - self.dropped - self.too_long

    @property
    def ratio(self) -> float:
        """Kept of the candidates."""
        return self.kept / self.candidates if self.candidates else 0.0

    def counts(self) -> dict[str, int]:
        names = ("rows", "kept", "empty", "dropped", "too_long", "cut", "last_only")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Taken:
    """A row that was read: how it is shown, and its tokens, or why it is no candidate."""

    row: Row
    text: str
    found: Encoded | str


Group = list[Taken]  # consecutive rows, `batch_size` of them candidates


def _candidates(group: Group) -> list[tuple[Row, Encoded]]:
    return [(one.row, one.found) for one in group if isinstance(one.found, Encoded)]


def select(settings: SelectSettings, *, overwrite: bool = False, progress: bool = True) -> Outcome:
    """Write the rows that are kept to `settings.out`, as they are and in their order, and beside it
    `NAME.record.jsonl`: a line for each row, with its score and why it was not kept.

    A selection that was killed goes on where it was, to the same files.

    Raises:
        ValueError, FileNotFoundError: settings, a damaged row, files that are in the way, or a
            selection to be gone on with that had other settings or rows.
        Busy: another process selects into the file.
    """
    settings.check()
    files = Files(settings.out)
    if not overwrite:
        files.refuse_existing(json.dumps(settings.as_json()))
    with locked(files.folder):
        try:
            outcome = _Selecting(settings, files, overwrite, progress).run()
        finally:
            files.close()
    files.leave()
    return outcome


class _Selecting:
    def __init__(
        self, settings: SelectSettings, files: Files, overwrite: bool, progress: bool
    ) -> None:
        self.settings, self.files, self.progress = settings, files, progress
        if overwrite:
            files.discard()
        self.described = settings.as_json()
        self.saved = files.state()
        self.outcome = Outcome(out=settings.out, record=files.record_path)
        self.digest = hashlib.sha256()
        self.started = time.perf_counter()

    def run(self) -> Outcome:
        rows = self._rows()
        if self.saved is not None:
            self._restore(self.saved, rows)
        if self.saved is None or not self.saved.done:
            self._select(rows)
        self.files.finish()
        return self.outcome

    def _select(self, rows: Samples) -> None:
        settings, policy = self.settings, self.settings.make_policy()
        tokenizer, processor = models.load_reader(settings.model)
        encoder = Encoder(tokenizer, settings.max_length, settings.data.chat, processor)
        groups = self._groups(rows, encoder)
        first = next(groups, None)  # damaged rows and missing fields, before the model is loaded
        model = self._model() if policy.needs else None
        if wants_length(policy):
            every = self._groups(self._rows(), encoder)
            policy.total_batches = sum(bool(_candidates(group)) for group in every)
        scorer = Scorer(model, encoder, policy, layer=settings.layer, seed=settings.seed)
        self._open(scorer)
        self._pass(chain([] if first is None else [first], groups), scorer)
        self._bring_to_disk(scorer, done=True)

    def _model(self) -> PreTrainedModel:
        device = choose_device(self.settings.device)
        return models.load_model(
            self.settings.model, device, choose_dtype(self.settings.dtype, device)
        )

    def _open(self, scorer: Scorer) -> None:
        if self.saved is None:
            self.files.open()
            self.files.note(json.dumps({"type": "start", **self.described}))
            return
        scorer.load_state_dict(self.saved.scorer)
        self.files.open(self.saved.sizes)

    def _pass(self, groups: Iterable[Group], scorer: Scorer) -> None:
        saved = time.perf_counter()
        hidden = not (self.progress and sys.stderr.isatty())
        with tqdm(unit=" rows", initial=self.outcome.rows, disable=hidden) as bar:
            for group in groups:
                self._take(group, scorer)
                bar.update(len(group))
                bar.set_postfix(kept=self.outcome.kept, refresh=False)
                if time.perf_counter() - saved >= SAVE_SECONDS:
                    self._bring_to_disk(scorer)
                    saved = time.perf_counter()
        counts = {"candidates": self.outcome.candidates, **self.outcome.counts()}
        self.files.note(json.dumps({"type": "end", **counts}))

    def _rows(self) -> Samples:
        vision = models.takes_images(self.settings.model)
        for source in self.settings.data.path:
            yield from samples(self.settings.data, source, vision)

    def _groups(self, rows: Samples, encoder: Encoder) -> Iterator[Group]:
        group: Group = []
        candidates = 0
        for row, sample in rows:
            one = Taken(row, shown(*sample.sides), encoder.or_why(sample))
            group.append(one)
            candidates += isinstance(one.found, Encoded)
            if candidates == self.settings.batch_size:
                yield group
                group, candidates = [], 0
        if group:
            yield group

    def _take(self, group: Group, scorer: Scorer) -> None:
        lines: Iterator[dict[str, Any]] = iter(())
        if candidates := _candidates(group):
            keys = [row.key for row, _ in candidates]
            lines = iter(reasons(*scorer.observe([found for _, found in candidates]), keys))
        for one in group:
            row, found = one.row, one.found
            self._digest(row)
            self.outcome.add(found)
            if isinstance(found, Encoded):
                line = next(lines)
                self.outcome.kept += line["kept"]
                if line["kept"]:
                    self.files.keep(row.line)
            else:
                line = {"key": row.key, "kept": False, "why": found}
            line |= {"type": "row", "text": one.text}
            self.files.note(json.dumps(finite(line), ensure_ascii=False))

    def _digest(self, row: Row) -> None:
        self.digest.update(f"{row.key}\n{row.line}\n".encode())

    def _bring_to_disk(self, scorer: Scorer, done: bool = False) -> None:
        self.outcome.seconds += time.perf_counter() - self.started
        self.started = time.perf_counter()
        self.files.save(
            settings=json.dumps(self.described),
            counts=self.outcome.counts(),
            seconds=self.outcome.seconds,
            digest=self.digest.hexdigest(),
            scorer=scorer.state_dict(),
            done=done,
        )

    def _restore(self, saved: State, rows: Samples) -> None:
        """Go on where `saved` was; takes the rows off that it had read.

        Raises:
            ValueError: it had other settings or rows.
        """
        if json.loads(saved.settings) != self.described:
            raise ValueError(
                f"out: {self.files.folder} holds a selection with other settings that did not come "
                "to its end; go on with those, or --overwrite starts anew"
            )
        for row, _ in islice(rows, saved.counts["rows"]):
            self._digest(row)
        more = saved.done and next(rows, None) is not None
        if more or self.digest.hexdigest() != saved.digest:
            raise ValueError(
                "data: the rows are not those that the selection to be gone on with had read; "
                "--overwrite starts anew"
            )
        for name, value in saved.counts.items():
            setattr(self.outcome, name, value)
        self.outcome.seconds += saved.seconds
