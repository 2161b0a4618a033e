"""A folder with a tiny random LLaVA and its processor, as users have them; and rows with images."""

from __future__ import annotations

from pathlib import Path

import tiny_folder
import torch
from PIL import Image
from tiny_vision import VISION
from transformers import (
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

TEMPLATE = (
    "{% for m in messages %}{{ '[' if m.role == 'user' else '' }}"
    "{% for part in m.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"
    "{{ ']' if m.role == 'user' else '</s>' }}{% endfor %}"
)
SHADES = {"dark": (20, 20, 40), "light": (250, 240, 250)}


def processor() -> LlavaProcessor:
    """Four tokens for an image, one for each byte of a text; "[question]answer</s>"."""
    tokenizer = tiny_folder.byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": 8, "width": 8}
    images = CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    return LlavaProcessor(
        images, tokenizer, patch_size=4, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=TEMPLATE,
    )  # fmt: skip


def save(folder: Path, layers: int = 1) -> str:
    """Write model and processor into `folder`; returns it."""
    made = processor()
    torch.manual_seed(0)
    vision = CLIPVisionConfig(**VISION | {"num_hidden_layers": 1, "initializer_range": 0.3})
    text = tiny_folder.llama_config(len(made.tokenizer), layers)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=made.image_token_id,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return str(folder)


def shades(folder: Path, count: int) -> list[dict]:
    """Rows of LLaVA's format, which ask whether an image is dark or light; their images, which all
    differ, go into `folder`.
    """
    rows = []
    for i in range(count):
        answer, (red, green, blue) = list(SHADES.items())[i % 2]
        Image.new("RGB", (8, 8), (red, green - i // 40, blue - i % 40)).save(folder / f"{i}.png")
        turns = [
            {"from": "human", "value": "<image>\nshade?"},
            {"from": "gpt", "value": answer},
        ]
        rows.append({"id": i, "image": f"{i}.png", "conversations": turns})
    return rows
