"""One pass over rows: candidate batches are scored, the policy chooses, its rows are kept."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from oasis.lab import model as models
from oasis.lab.data.own.load import samples
from oasis.lab.data.own.rows import Row
from oasis.lab.data.own.tokens import Encoded, NothingLeft, encode_sample
from oasis.lab.data.shown import shown
from oasis.lab.device import choose_device, choose_dtype
from oasis.lab.record.lock import locked
from oasis.lab.record.log import finite
from oasis.lab.select.files import Files
from oasis.lab.select.score import Scorer, reasons
from oasis.lab.select.settings import SelectSettings

SAVE_SECONDS = 5.0  # between two states on disk


@dataclass
class Outcome:
    """What came of a selection. `rows` that were read are candidates, or empty, or too long; of
    the candidates some were `cut` to `max_length` tokens for their score, and written whole.
    """

    out: Path
    record: Path
    rows: int = 0
    candidates: int = 0
    kept: int = 0
    empty: int = 0
    dropped: int = 0
    cut: int = 0
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """Kept of the candidates."""
        return self.kept / self.candidates if self.candidates else 0.0

    def counts(self) -> dict[str, int]:
        names = ("rows", "candidates", "kept", "empty", "dropped", "cut")
        return {name: getattr(self, name) for name in names}


@dataclass
class _Group:
    """Consecutive rows, `batch_size` of them candidates, and what is known of each."""

    rows: list[Row] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # how each is shown
    encoded: list[Encoded | str] = field(default_factory=list)  # or why it is no candidate

    @property
    def candidates(self) -> list[Encoded]:
        return [one for one in self.encoded if isinstance(one, Encoded)]


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
        files.refuse_existing()
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
        self.told = settings.told()
        self.saved = files.state()
        if self.saved is not None and json.loads(self.saved["settings"]) != self.told:
            raise ValueError(
                f"out: {files.folder} holds a selection with other settings that did not come to "
                "its end; go on with those, or --overwrite starts anew"
            )
        self.outcome = Outcome(settings.out, files.record_path)
        self.digest = hashlib.sha256()
        self.started = time.perf_counter()

    def run(self) -> Outcome:
        if self.saved is not None and self.saved["done"]:
            self._restore(self.saved)
            self.files.finish()
            return self.outcome
        tokenizer = models.load_tokenizer(self.settings.model)
        groups = self._groups(tokenizer)
        first = next(groups, None)  # damaged rows and missing fields, before the model is loaded
        device = choose_device(self.settings.device)
        model = models.load_model(
            self.settings.model, device, choose_dtype(self.settings.dtype, device)
        )
        policy = self.settings.make_policy()
        if getattr(policy, "total_batches", 0) is None:
            policy.total_batches = sum(bool(group.candidates) for group in self._groups(tokenizer))
        scorer = Scorer(
            model, tokenizer, policy, layer=self.settings.layer, seed=self.settings.seed
        )
        self._open(scorer)
        self._pass(chain([] if first is None else [first], groups), scorer)
        self._bring_to_disk(scorer, done=True)
        self.files.finish()
        return self.outcome

    def _open(self, scorer: Scorer) -> None:
        if self.saved is None:
            self.files.open()
            self.files.note(json.dumps({"type": "start", **self.told}))
            return
        scorer.load_state_dict(self.saved["scorer"])
        self.files.open(tuple(self.saved["sizes"]))

    def _pass(self, groups: Iterable[_Group], scorer: Scorer) -> None:
        saved = time.perf_counter()
        behind = 0 if self.saved is None else self.saved["counts"]["rows"]
        with tqdm(unit=" rows", disable=not _on_a_terminal(self.progress)) as bar:
            for group in groups:
                for row in group.rows:
                    self.digest.update(f"{row.key}\n{row.line}\n".encode())
                self.outcome.rows += len(group.rows)
                bar.update(len(group.rows))
                if behind:
                    if self.outcome.rows >= behind:
                        self._check_rows()
                        assert self.saved is not None  # it says what is behind
                        self._restore(self.saved)
                        behind = 0
                    continue
                self._take(group, scorer)
                bar.set_postfix(kept=self.outcome.kept, refresh=False)
                if time.perf_counter() - saved >= SAVE_SECONDS:
                    self._bring_to_disk(scorer)
                    saved = time.perf_counter()
        if behind:
            self._check_rows()
        self.files.note(json.dumps({"type": "end", **self.outcome.counts()}))

    def _groups(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[_Group]:
        group = _Group()
        for source in self.settings.data.path:
            for row, sample in samples(self.settings.data, source):
                found: Encoded | str = "empty"
                if not sample.empty:
                    try:
                        found = encode_sample(
                            sample,
                            tokenizer,
                            self.settings.max_length,
                            chat=self.settings.data.chat,
                        )
                    except NothingLeft:
                        found = "too long to learn from"
                group.rows.append(row)
                group.texts.append(shown(*sample.sides))
                group.encoded.append(found)
                if len(group.candidates) == self.settings.batch_size:
                    yield group
                    group = _Group()
        if group.rows:
            yield group

    def _take(self, group: _Group, scorer: Scorer) -> None:
        candidates, outcome = group.candidates, self.outcome
        keys = [
            row.key
            for row, found in zip(group.rows, group.encoded, strict=True)
            if isinstance(found, Encoded)
        ]
        told: Iterator[dict[str, Any]] = iter(())
        if candidates:
            told = iter(reasons(*scorer.observe(candidates), keys))
        for row, text, found in zip(group.rows, group.texts, group.encoded, strict=True):
            if isinstance(found, Encoded):
                line = next(told)
                outcome.candidates += 1
                outcome.cut += found.cut > 0
                outcome.kept += line["kept"]
                if line["kept"]:
                    self.files.keep(row.line)
            else:
                line = {"key": row.key, "kept": False, "why": found}
                outcome.empty += found == "empty"
                outcome.dropped += found != "empty"
            line |= {"type": "row", "text": text}
            self.files.note(json.dumps(finite(line), ensure_ascii=False))

    def _bring_to_disk(self, scorer: Scorer, done: bool = False) -> None:
        self.outcome.seconds += time.perf_counter() - self.started
        self.started = time.perf_counter()
        self.files.save(
            settings=json.dumps(self.told),
            counts=self.outcome.counts(),
            seconds=self.outcome.seconds,
            digest=self.digest.hexdigest(),
            scorer=scorer.state_dict(),
            done=done,
        )

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, value in saved["counts"].items():
            setattr(self.outcome, name, value)
        self.outcome.seconds += saved["seconds"]

    def _check_rows(self) -> None:
        assert self.saved is not None
        if self.digest.hexdigest() != self.saved["digest"]:
            raise ValueError(
                "data: the rows are not those that the selection to be gone on with had read; "
                "--overwrite starts anew"
            )


def _on_a_terminal(progress: bool) -> bool:
    return progress and sys.stderr.isatty()
