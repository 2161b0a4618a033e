"""Run the frozen lower blocks of a language model once per text and keep what they give.

With LoRA on the top blocks alone, everything below maps a text to the same hidden states for the
whole run: for every draw from the memory, every evaluation, and every policy that is compared.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from oasis.train.frozen.hidden_store import HiddenStore, fingerprint, tokenizer_fingerprint


class Backbone(nn.Module):
    """What a decoder laid out as Llama is has, for type checkers; models are cast to it."""

    config: Any
    embed_tokens: Any  # nn.Embedding, or what takes its place
    layers: nn.ModuleList
    norm: nn.Module
    rotary_emb: nn.Module


@dataclass(frozen=True)
class Text:
    """A row without its padding.

    Attributes:
        ids: up to the last that is not the padding id.
        start: the column it begins at.
        length: of its states: of `ids`, and of the padding ids behind them that may be its own.
        attended: how many of them the mask takes for its own.
        key: what its states are looked up by.
    """

    ids: torch.Tensor
    start: int
    length: int
    attended: int
    key: bytes

    @property
    def named(self) -> bytes:
        """What means over the attended ones are looked up by."""
        return self.attended.to_bytes(4, "little") + self.key

    @classmethod
    def of(cls, row: torch.Tensor, attended: torch.Tensor, pad: int) -> Text:
        """Of ids [T] and whether they are attended to [T]."""
        start = int(attended.int().argmax())  # 0 in a row of padding alone
        row, attended = row[start:], attended[start:]
        real = (row != pad).nonzero().flatten()
        end = int(real[-1]) + 1 if len(real) else 0
        behind = attended[end:]
        # All ones say nothing of where the text ends.
        own = 1 if bool(behind.all()) else int(behind.sum())
        key = row[: end if own <= 1 else end + own]
        attended_ids = end + (own if len(behind) else 0)
        return cls(row[:end], start, end + max(own, 1), attended_ids, key.numpy().tobytes())


class FrozenPrefix(nn.Module):
    """Takes the place of a backbone's token embedding: ids [N, T] to hidden states [N, T, D].

    A row's states are looked up by its ids without padding; rows not met before go through the
    lower blocks (a causal model: what comes later in a row has no influence). Kept in memory on the
    model's device, (T + 1) x D numbers a text, and where a `store` is given also on disk, for other
    processes and later runs.

    A text may begin or end with the padding id, where a tokenizer pads with its BOS or EOS. What
    the attention mask leaves out on the left is padding, and nothing else there. Padding ids at the
    end belong to the text as far as the mask says so; where it says nothing (all ones, as
    `scoring.model_inputs` makes it), the first of them does: the states there are of a text's EOS,
    or of a column that nobody reads.
    """

    def __init__(
        self,
        lower: Backbone,
        pad_token_id: int,
        batch_size: int = 32,
        store: HiddenStore | None = None,
    ) -> None:
        super().__init__()
        # In a list, lest it be a submodule: adapters and checkpoints must not see it.
        self._lower = [lower]
        self.pad_token_id = pad_token_id
        self.batch_size = batch_size
        self.store = store
        self.states: dict[bytes, torch.Tensor] = {}
        self.attention_mask: torch.Tensor | None = None  # [N, T] of the backbone's next call
        self._means: dict[bytes, torch.Tensor] = {}  # of `block_means`
        self._means_of: tuple[int, ...] = ()

    @property
    def lower(self) -> Backbone:
        """The backbone of the frozen blocks."""
        return self._lower[0]

    @property
    def weight(self) -> torch.Tensor:
        """The token embedding's own weight [V, D], which callers of get_input_embeddings expect."""
        return self._lower[0].embed_tokens.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        mask, self.attention_mask = self.attention_mask, None
        texts = self._texts(input_ids, mask)
        missing = {t.key: t for t in texts if len(t.ids) and t.key not in self.states}
        if missing and self.store is not None:
            missing = self._load(self.store, missing)
        self._compute(missing)
        out = self.weight.new_zeros(*input_ids.shape, self.weight.shape[1])
        for index, text in enumerate(texts):
            if len(text.ids):
                there = slice(text.start, text.start + text.length)
                out[index, there] = self.states[text.key][: len(out[index, there])]
        return out

    @torch.no_grad()
    def block_means(
        self, input_ids: torch.Tensor, blocks: Sequence[int], attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """[N, len(blocks), D] float32, means over each row's attended tokens of what these of the
        frozen blocks give; zeros for a row of padding. Once per text, kept in memory.
        """
        if self._means_of != tuple(blocks):
            self._means, self._means_of = {}, tuple(blocks)
        texts = self._texts(input_ids, attention_mask)
        missing = {t.named: t for t in texts if len(t.ids) and t.named not in self._means}
        given: dict[int, torch.Tensor] = {}
        with ExitStack() as hooks:
            for block in set(blocks):

                def keep(module, args, output, block=block) -> None:
                    given[block] = output if isinstance(output, torch.Tensor) else output[0]

                hooks.callback(self.lower.layers[block].register_forward_hook(keep).remove)
            for keys, _ in self._run(missing):
                for index, key in enumerate(keys):
                    attended = missing[key].attended
                    means = [given[block][index, :attended].float().mean(dim=0) for block in blocks]
                    self._means[key] = torch.stack(means)
        empty = self.weight.new_zeros(len(blocks), self.weight.shape[1], dtype=torch.float32)
        return torch.stack([self._means[t.named] if len(t.ids) else empty for t in texts])

    def _texts(self, input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[Text]:
        if mask is None or mask.shape != input_ids.shape:
            mask = torch.ones_like(input_ids)
        rows = zip(input_ids.cpu(), (mask != 0).cpu(), strict=True)
        return [Text.of(row, attended, self.pad_token_id) for row, attended in rows]

    def _load(self, store: HiddenStore, missing: dict[bytes, Text]) -> dict[bytes, Text]:
        """Take from the store what it has; returns what is still missing."""
        store.refresh()
        device = self.weight.device
        for key in list(missing):
            found = store.get(_name(key))
            if found is not None:
                self.states[key] = found.to(device)
                del missing[key]
        return missing

    @torch.no_grad()
    def _compute(self, missing: dict[bytes, Text]) -> None:
        for keys, hidden in self._run(missing):
            for index, key in enumerate(keys):
                self.states[key] = hidden[index, : missing[key].length].clone()
        if missing and self.store is not None:
            self.store.put({_name(key): self.states[key] for key in missing})

    def _run(self, texts: dict[bytes, Text]) -> Iterator[tuple[list[bytes], torch.Tensor]]:
        """The frozen blocks on `texts`, the short ones first: some keys, their states [n, T, D]."""
        order = sorted(texts, key=lambda key: texts[key].length)
        for start in range(0, len(order), self.batch_size):
            keys = order[start : start + self.batch_size]
            ids = torch.full((len(keys), max(texts[key].length for key in keys)), self.pad_token_id)
            for index, key in enumerate(keys):
                ids[index, : len(texts[key].ids)] = texts[key].ids
            # Padding on the right needs no mask: a causal model never looks ahead.
            yield keys, self.lower(input_ids=ids.to(self.weight.device), use_cache=False)[0]


def _name(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=16).hexdigest()


class Skip(nn.Module):
    """A block that does nothing, so that the blocks above keep their numbers (and adapters their
    names)."""

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        return hidden_states


def freeze_below(
    model: PreTrainedModel,
    blocks: int,
    pad_token_id: int,
    folder: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> FrozenPrefix:
    """Change `model` in place: its lowest `blocks` blocks become a `FrozenPrefix`.

    With a `folder`, hidden states are also kept there on disk, under a name made of what they come
    from: the weights, the number of blocks, the dtype, and the `tokenizer` that gives the ids.

    For decoder-only models laid out as Llama is (`model.model` with `embed_tokens`, `layers`,
    `norm`), padded on either side. The change is checked on a random row: ValueError
    (and the model as it was) where the logits come out different, TypeError for other layouts.
    """
    backbone = getattr(model, "model", None)
    if not all(hasattr(backbone, part) for part in ("embed_tokens", "layers", "norm")):
        raise TypeError(
            f"model: {type(model).__name__} is not laid out as model.model.(embed_tokens, layers, "
            "norm); set cache_frozen=false"
        )
    backbone = cast(Backbone, backbone)
    layers, embedding = backbone.layers, backbone.embed_tokens
    if not 0 < blocks < len(layers):
        raise ValueError(f"blocks: got {blocks}, expected 1 to {len(layers) - 1}")
    prefix = FrozenPrefix(_lower(backbone, blocks), pad_token_id)

    vocabulary = embedding.weight.shape[0]
    probe = torch.randint(vocabulary, (1, 8), generator=torch.Generator().manual_seed(0))
    probe[probe == pad_token_id] = (pad_token_id + 1) % vocabulary
    probe = probe.to(embedding.weight.device)
    training = model.training
    model.eval()
    with torch.no_grad():
        before = model(input_ids=probe, use_cache=False).logits
        backbone.embed_tokens = prefix
        mask = backbone.register_forward_pre_hook(_remember_mask, with_kwargs=True)
        backbone.layers = nn.ModuleList([*(Skip() for _ in range(blocks)), *layers[blocks:]])
        after = model(input_ids=probe, use_cache=False).logits
    model.train(training)
    prefix.states.clear()
    if folder is not None:
        of = {
            "model": fingerprint(prefix.lower, model.config.to_json_string(use_diff=False)),
            "layer": str(blocks),
            "dtype": str(prefix.weight.dtype),
            "tokenizer": "" if tokenizer is None else tokenizer_fingerprint(tokenizer),
            "tail": "1",  # states behind a text's own
        }
        prefix.store = HiddenStore(folder, of)
    if not torch.allclose(before, after, rtol=0, atol=1e-2 * float(before.abs().max())):
        backbone.embed_tokens, backbone.layers = embedding, layers
        mask.remove()
        raise ValueError(
            f"model: {type(model).__name__} gives other logits when its lower blocks run apart; "
            "set cache_frozen=false"
        )
    return prefix


def _remember_mask(backbone: Backbone, args: tuple, kwargs: dict) -> None:
    """A token embedding does not get the mask that its backbone is called with."""
    backbone.embed_tokens.attention_mask = kwargs.get("attention_mask")


def _lower(backbone: Backbone, blocks: int) -> Backbone:
    """A backbone of the lowest `blocks` blocks and no last norm, on the same weights."""
    config = copy.deepcopy(backbone.config)
    config.num_hidden_layers = blocks
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:blocks]
    with torch.device("meta"):
        lower = type(backbone)(config)
    lower.embed_tokens, lower.norm = backbone.embed_tokens, nn.Identity()
    lower.layers = backbone.layers[:blocks]
    if hasattr(backbone, "rotary_emb"):
        lower.rotary_emb = backbone.rotary_emb  # its buffers are on no device in the new one
    return lower.eval()
