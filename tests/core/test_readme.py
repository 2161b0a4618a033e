"""The README's code runs as printed, and the page stays short; so does docs/selecting.md's."""

import re
from pathlib import Path

import torch
from tiny_models import PAD, VOCAB, tiny_llama
from tiny_training import Pad, Rows

import oasis

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    """The Python code of a page, block by block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"(?ms)^```python\n(.*?)^```", text)


def select_a_stream(code: str):
    """Run the code that selects from `stream` and gives `train_on` what it chose: both counted."""
    g = torch.Generator().manual_seed(0)
    stream, trained = [torch.randn(16, 12, generator=g) for _ in range(200)], []
    names = {
        "oasis": oasis,
        "stream": stream,
        "train_on": lambda indices: trained.append(len(indices)),
    }
    exec(code, names)
    return names["selector"], len(stream), sum(trained)


def test_it_is_short_and_begins_with_code():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert "```" in lines[:20] and "```python" in lines[:20]


def test_the_loop_selects_the_ratio_it_was_given():
    for page in ("README.md", "docs/selecting.md"):
        selector, batches, selected = select_a_stream(blocks(page)[0])
        assert isinstance(selector, oasis.Selector)
        assert 0.23 * 16 * batches <= selected <= 0.25 * 16 * batches


def test_the_loop_that_remembers_selects_the_ratio_too():
    selector, batches, selected = select_a_stream(blocks("docs/selecting.md")[3])
    assert 0.95 * selector.ratio * 16 * batches <= selected <= selector.ratio * 16 * batches
    assert selector.memory.any(1).all(), "the memory is full"


def test_the_trainer_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_llama(torch.float32)
    before = {name: value.clone() for name, value in model.named_parameters()}
    names = {"model": model, "dataset": Rows(32), "collator": Pad("right")}
    exec(blocks("README.md")[1], names)
    counts = names["trainer"].selection_counts
    assert counts.candidates == 3 * 32 and 0 < counts.selected <= 24  # three epochs at 25 %
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_the_head_is_scored_from_its_hidden_states():
    g = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(8, VOCAB, bias=False)
    hidden = torch.randn(4, 6, 8, generator=g)
    labels = torch.randint(PAD, VOCAB, (4, 6), generator=g)
    names = {"torch": torch, "oasis": oasis, "head": head, "hidden": hidden, "labels": labels}
    names["selector"] = oasis.Selector(0.5)
    exec(blocks("docs/selecting.md")[1], names)
    # Sample by sample, the gradient of the mean loss with respect to the head.
    norms = []
    for states, targets in zip(hidden, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(head(states[:-1]), targets[1:])
        norms.append(torch.autograd.grad(loss, head.weight)[0].square().sum().item())
    expected = torch.tensor(norms, dtype=torch.float64)
    assert torch.allclose(names["scores"].gram.diagonal().double(), expected, rtol=1e-4)
    assert names["selection"].mask.shape == (4,)
