"""What a grid shows of its cells while they run."""

from __future__ import annotations

import json

from runs_on_disk import start

from oasis.lab.compare.progress import Tail


def test_steps_are_counted_while_the_record_grows(tmp_path):
    tail = Tail(tmp_path)
    tail.update()
    assert (tail.steps, tail.total) == (0, None)
    path = tmp_path / "events.jsonl"
    line = json.dumps({"type": "step", "step": 1}) + "\n"
    path.write_text(json.dumps(start("oasis", boundaries=[3, 8])) + "\n" + line + line[:9])
    tail.update()
    assert (tail.steps, tail.total) == (1, 8)
    path.write_text(path.read_text() + line[9:])
    tail.update()
    assert tail.steps == 2
    path.write_text(json.dumps(start("oasis", boundaries=[3, 8])) + "\n")
    tail.update()
    assert (tail.steps, tail.first) == (0, 0), "what was done before is not new"
