"""Random models of the families whose batches or logits are not a Llama's, with items for them."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tiny_models import tiny_model
from tiny_vision import IMAGE, TEXT, VIDEO, VISION, VOCAB, spread
from torch import nn

LENGTHS = (7, 12, 9, 5, 11, 8)


@dataclass
class Family:
    """`make` a model in float64, and the `item` of a number; what LoRA `targets`; how well scores
    agree with autograd; `decoder`: labels are predicted at their own position.
    """

    make: Any
    item: Any
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    tolerance: float = 1e-10
    decoder: bool = False


def untied(model):
    """With a head of its own, and wide enough weights for probabilities that differ."""
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone().normal_(std=0.3))
    return model.double().eval()


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        **{"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1},
        **{"num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0},
        dropout_rate=0.0,
    )
    return untied(transformers.T5ForConditionalGeneration(config))


def whisper():
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        **{"vocab_size": VOCAB, "num_mel_bins": 8, "d_model": 32, "max_source_positions": 10},
        **{"encoder_layers": 1, "decoder_layers": 2, "max_target_positions": 32},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 4, "pad_token_id": 0},
        **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "bos_token_id": 1, "eos_token_id": 2},
        decoder_start_token_id=1,
    )
    return untied(transformers.WhisperForConditionalGeneration(config))


def causal(kind, **config):
    def make():
        return untied(tiny_model(kind, **config))

    return make


FALCON = {
    **{"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1},
    **{"mamba_d_state": 8, "mamba_chunk_size": 4, "lm_head_multiplier": 0.5},
}


def llava_next():
    torch.manual_seed(0)
    config = transformers.LlavaNextConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        image_grid_pinpoints=[[8, 8], [8, 16]],
    )
    return untied(spread(transformers.LlavaNextForConditionalGeneration(config), torch.float64))


def smolvlm():
    torch.manual_seed(0)
    config = transformers.SmolVLMConfig(
        vision_config=VISION | {"num_hidden_layers": 1},
        text_config=transformers.LlamaConfig(**TEXT),
        scale_factor=2,
        image_token_id=IMAGE,
        pad_token_id=0,
    )
    return untied(spread(transformers.SmolVLMForConditionalGeneration(config), torch.float64))


def text(number):
    """Ids and labels on the last 1 to 3 of them."""
    g = torch.Generator().manual_seed(number)
    ids = torch.randint(3, 50, (LENGTHS[number % len(LENGTHS)],), generator=g)
    labels = ids.clone()
    labels[: -(1 + number % 3)] = -100
    return {"input_ids": ids, "labels": labels}


def pair(number):
    """What an encoder is given and what a decoder is to say."""
    both, answer = text(number), text(number + 1)["input_ids"]
    return {"input_ids": both["input_ids"], "labels": answer[: 1 + number % 5]}


def speech(number):
    g = torch.Generator().manual_seed(number)
    features = torch.randn(8, 20, generator=g, dtype=torch.float64)
    return {"input_features": features, "labels": pair(number)["labels"]}


def embedded(number):
    g = torch.Generator().manual_seed(number)
    labels = text(number)["labels"]
    embeds = torch.randn(len(labels), 32, generator=g, dtype=torch.float64)
    return {"inputs_embeds": embeds, "labels": labels}


def mrope(number):
    item = text(number)
    steps = torch.tensor([[1], [2], [3]])
    return {**item, "position_ids": torch.arange(len(item["labels"])) * steps + number}


def between(number, *runs):
    """A text with runs of placeholders (token, how many) in it, apart from each other."""
    item = text(number)
    front = [token for run in runs for token in (4, *[run[0]] * run[1])]
    ids = torch.cat([torch.tensor([1, *front]), item["input_ids"]])
    labels = torch.cat([torch.full((1 + len(front),), -100), item["labels"]])
    return {"input_ids": ids, "labels": labels}


def filmed(number):
    """None, one or two videos of 2 and 4 tokens."""
    sizes = [(1, 2, 4), (2, 2, 4)][: number % 3]
    g = torch.Generator().manual_seed(number)
    item = between(number, *((VIDEO, t * h * w // 4) for t, h, w in sizes))
    pixels = [torch.randn(t * h * w, 96, generator=g, dtype=torch.float64) for t, h, w in sizes]
    return {
        **item,
        "pixel_values_videos": pixels,
        "video_grid_thw": [torch.tensor([size]) for size in sizes],
        "second_per_grid_ts": [torch.tensor([1.0]) for _ in sizes],
    }


def tiled(number):
    """None, one or two images of 10 and 14 tokens (LLaVA-NeXT)."""
    sizes = [(8, 8), (8, 16)][: number % 3]
    g = torch.Generator().manual_seed(number)
    tokens = {(8, 8): 10, (8, 16): 14}
    item = between(number, *((IMAGE, tokens[size]) for size in sizes))
    pixels = torch.randn(len(sizes), 3, 3, 8, 8, generator=g, dtype=torch.float64)
    return {
        **item,
        "pixel_values": list(pixels.split(1)) if sizes else [],
        "image_sizes": [torch.tensor([size]) for size in sizes],
    }


def framed(number):
    """None, one or two images of one token, padded to two (SmolVLM)."""
    count = number % 3
    g = torch.Generator().manual_seed(number)
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.float64)
    pixels[:count] = torch.randn(count, 3, 8, 8, generator=g, dtype=torch.float64)
    seen = torch.zeros(2, 8, 8, dtype=torch.bool)
    seen[:count] = True
    item = between(number, *[(IMAGE, 1)] * count)
    return {**item, "pixel_values": pixels, "pixel_attention_mask": seen}


def collate(items, side="right"):
    """Rows padded to the longest, media one behind another, as processors do."""
    batch = {}
    for key in items[0]:
        values = [item[key] for item in items]
        if isinstance(values[0], list):
            parts = [part for value in values for part in value]
            if parts:
                batch[key] = torch.cat(parts)
        elif key in ("input_ids", "labels", "inputs_embeds"):
            length = max(len(value) for value in values)
            padded = [_pad(value, length, side, -100 * (key == "labels")) for value in values]
            batch[key] = torch.stack(padded)
        elif key == "position_ids":
            length = max(value.shape[1] for value in values)
            batch[key] = torch.stack([_pad(value.T, length, side, 0).T for value in values], dim=1)
        else:
            batch[key] = torch.stack(values)
    rows = next((key for key in ("input_ids", "inputs_embeds") if key in items[0]), None)
    if rows:
        ones = [torch.ones(len(item[rows]), dtype=torch.long) for item in items]
        batch["attention_mask"] = torch.stack(
            [_pad(x, batch[rows].shape[1], side, 0) for x in ones]
        )
    if "position_ids" in batch or "video_grid_thw" in items[0]:
        batch["mm_token_type_ids"] = 2 * (batch["input_ids"] == VIDEO).long()
    return batch


def _pad(value, length, side, fill):
    space = value.new_full((length - len(value), *value.shape[1:]), fill)
    return torch.cat([value, space] if side == "right" else [space, value])
