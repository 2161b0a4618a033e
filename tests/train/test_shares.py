"""What scoring takes of the time and padding of the positions: in the log and in the events."""

import pytest
import torch
from tiny_models import tiny_llama
from tiny_training import Fixed, selection_trainer

from oasis.train import events
from oasis.train.batch.subbatch import padding


class Clock:
    """Every look at it is a second later than the last one."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1.0
        return self.now


def test_a_run_says_its_shares(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "time", Clock())
    seen, mask = [], torch.tensor([1, 0, 0, 0], dtype=torch.bool)
    trainer = selection_trainer(
        tmp_path, tiny_llama(), Fixed([mask]), on_event=seen.append, logging_steps=2, max_steps=2
    )
    rows, select = [], trainer._select
    trainer._select = lambda batch: rows.append(batch["attention_mask"].clone()) or select(batch)
    trainer.train()
    steps = [event for event in seen if event["type"] == "step"]
    for step, mask in zip(steps, rows, strict=True):
        assert step["padding_share"] == float((mask == 0).double().mean()) > 0
        assert step["score_seconds"] == 1.0
    logged = next(log for log in trainer.state.log_history if "scoring_share" in log)
    assert logged["padding_share"] == pytest.approx(float((torch.stack(rows) == 0).double().mean()))
    # A step: it begins, scoring begins and ends, training begins, it ends: four seconds, one of
    # which is scoring.
    assert logged["scoring_share"] == pytest.approx(1 / 4)
    assert trainer._step.all_shares == events.Shares()


def test_without_a_mask_nothing_is_known_of_padding():
    labels = torch.zeros(2, 3, dtype=torch.int64)
    assert padding({"labels": labels}) == 0
    assert padding({"labels": labels, "attention_mask": torch.eye(2, 3)}) == 4
    assert events.Shares().scoring_share == events.Shares().padding_share == 0.0
