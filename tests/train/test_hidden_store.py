"""Hidden states on disk: those of this model and these texts, as they were written, or none."""

from __future__ import annotations

import errno
import json

import pytest
import tiny_text
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from oasis.train.frozen import hidden_store
from oasis.train.frozen.hidden_store import HiddenStore, tokenizer_fingerprint
from oasis.train.frozen.prefix import freeze_below

OF = {"model": "m", "layer": "2", "dtype": "torch.float32", "tokenizer": "t"}


def states(*keys: str, dtype=torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {key: torch.randn(3, 4, generator=generator).to(dtype) for key in keys}


def files(store: HiddenStore) -> list:
    return sorted(store.folder.glob("*.safetensors"))


def fresh(folder, **other) -> HiddenStore:
    """As another process would see it."""
    store = HiddenStore(folder, {**OF, **other})
    store.refresh()
    return store


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_process_reads_what_was_written(tmp_path, dtype):
    written = states("a", "b", dtype=dtype)
    HiddenStore(tmp_path, OF).put(written)
    store = fresh(tmp_path)
    for key, tensor in written.items():
        assert torch.equal(store.get(key), tensor) and store.get(key).dtype == dtype
    assert store.get("c") is None
    HiddenStore(tmp_path, OF).put(states("c"))
    assert store.get("c") is None  # until it looks again
    store.refresh()
    assert store.get("c") is not None


@pytest.mark.parametrize("name", OF)
def test_states_of_something_else_are_not_used(tmp_path, name):
    HiddenStore(tmp_path, OF).put(states("a"))
    other = fresh(tmp_path, **{name: "other"})
    assert other.get("a") is None
    # Nor where a file lies in the wrong folder.
    other.folder.mkdir()
    (path,) = files(fresh(tmp_path))
    (other.folder / path.name).write_bytes(path.read_bytes())
    other.refresh()
    assert other.get("a") is None and len(files(other)) == 1


def test_files_that_say_nothing_of_themselves_are_not_used(tmp_path):
    store = HiddenStore(tmp_path, OF)
    store.folder.mkdir(parents=True)
    save_file(states("a"), store.folder / "x.safetensors")
    save_file(states("a"), store.folder / "y.safetensors", {"of": store.of})
    store.refresh()
    assert store.get("a") is None


def test_a_torn_file_is_set_aside_and_the_others_serve(tmp_path, caplog):
    HiddenStore(tmp_path, OF).put(states("a"))
    (whole,) = files(fresh(tmp_path))
    content = whole.read_bytes()
    torn = whole.with_name("0torn.safetensors")
    for length in [0, 1, 7, 8, 9, *range(20, len(content), 23), len(content) - 1]:
        torn.write_bytes(content[:length])
        store = fresh(tmp_path)
        assert torch.equal(store.get("a"), states("a")["a"])
        assert not torn.exists() and torn.with_suffix(".damaged").exists()
        assert f"{torn} is damaged" in caplog.records[-1].message


def test_a_flipped_bit_gives_the_states_or_none(tmp_path):
    written = states("a", "b")
    HiddenStore(tmp_path, OF).put(written)
    (path,) = files(fresh(tmp_path))
    content, lost = path.read_bytes(), 0
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        store = fresh(tmp_path)
        for key, tensor in written.items():
            got = store.get(key)
            lost += got is None
            assert got is None or torch.equal(got, tensor), at
        path.with_suffix(".damaged").unlink(missing_ok=True)
        path.write_bytes(content)
    assert lost > 50


def test_damaged_states_are_named_and_do_not_hide_good_ones(tmp_path, caplog):
    HiddenStore(tmp_path, OF).put(states("a", "b"))
    (path,) = files(fresh(tmp_path))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")  # the end of one of the two
    store = fresh(tmp_path)
    (bad,) = [key for key in "ab" if store.get(key) is None]
    assert f"{path}: the states {bad} are damaged" in caplog.text
    for _ in range(8):  # names are random: before it and behind it
        HiddenStore(tmp_path, OF).put({bad: states("a", "b")[bad]})
    store = fresh(tmp_path)
    assert torch.equal(store.get(bad), states("a", "b")[bad])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_states_that_are_not_finite_are_neither_kept_nor_used(tmp_path, value):
    broken = states("a", "b")
    broken["a"][1, 2] = value
    HiddenStore(tmp_path, OF).put(broken)
    store = fresh(tmp_path)
    assert store.get("a") is None and store.get("b") is not None
    HiddenStore(tmp_path, OF).put({"a": broken["a"]})
    assert len(files(store)) == 1
    # Nor where another program wrote them, digest and all.
    digest = hidden_store._digest(hidden_store._content("a", broken["a"])).hexdigest()
    about = {"of": store.of, "digests": json.dumps({"a": digest})}
    save_file({"a": broken["a"]}, store.folder / "z.safetensors", about)
    store.refresh()
    assert store.get("a") is None


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")

    monkeypatch.setattr(hidden_store, "save_file", full)
    store = HiddenStore(tmp_path, OF)
    with pytest.raises(OSError, match="No space left on device"):
        store.put(states("a"))
    assert list(store.folder.iterdir()) == []


def test_a_tokenizer_is_known_by_its_rules_and_not_by_its_last_call():
    tokenizer = tiny_text.tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["one two", "three"], padding=True, truncation=True, max_length=1)
    assert (
        tokenizer_fingerprint(tokenizer) == before == tokenizer_fingerprint(tiny_text.tokenizer())
    )
    tokenizer.add_tokens(["nine"])
    assert tokenizer_fingerprint(tokenizer) != before


def test_a_model_computes_what_is_damaged_anew(tmp_path):
    ids = torch.tensor([[3, 4, 5], [0, 6, 7]])

    def run() -> tuple[torch.Tensor, int]:
        model = tiny_text.model(layers=3)
        prefix = freeze_below(model, 2, 0, tmp_path, tiny_text.tokenizer())
        computed = []
        prefix.lower.register_forward_hook(lambda *args: computed.append(1))
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, -1]
        return logits, len(computed)

    first, computed = run()
    assert computed == 1
    again, computed = run()
    assert computed == 0 and torch.equal(again, first)
    (path,) = tmp_path.glob("*/*.safetensors")
    for damage in (
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: save_file({k: 2 * v for k, v in load_file(path).items()}, path),
    ):
        damage(path)
        again, computed = run()
        assert computed == 1 and torch.equal(again, first)
        (path,) = [p for p in tmp_path.glob("*/*.safetensors") if p != path]
        again, computed = run()
        assert computed == 0 and torch.equal(again, first)


def test_other_layers_dtypes_and_tokenizers_have_folders_of_their_own(tmp_path):
    other = tiny_text.tokenizer()
    other.add_tokens(["nine"])
    seen = set()
    for blocks, dtype, tokenizer in [
        (1, torch.float32, tiny_text.tokenizer()),
        (2, torch.float32, tiny_text.tokenizer()),
        (1, torch.bfloat16, tiny_text.tokenizer()),
        (1, torch.float32, other),
    ]:
        model = tiny_text.model(layers=3).to(dtype)
        seen.add(freeze_below(model, blocks, 0, tmp_path, tokenizer).store.folder)
    assert len(seen) == 4
