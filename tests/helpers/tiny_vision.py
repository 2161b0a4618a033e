"""Random vision-language models of a few thousand parameters, and batches for them."""

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

VOCAB, PAD, IMAGE, START, END, VIDEO = 61, 0, 60, 59, 58, 57
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def spread(model, dtype):
    """Wide enough weights that images matter and probabilities differ."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "norm" not in name:
                parameter.normal_(std=0.2)
    return model.to(dtype).eval()


def llava(dtype=torch.float64, seed=0):
    """Four image tokens for an image of 3 x 8 x 8."""
    torch.manual_seed(seed)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    return spread(LlavaForConditionalGeneration(config), dtype)


def qwen(dtype=torch.float64, seed=0):
    """One image token for every 2 x 2 patches of 3 x 2 x 4 x 4 numbers."""
    torch.manual_seed(seed)
    config = Qwen2_5_VLConfig(
        text_config={
            **TEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    return spread(Qwen2_5_VLForConditionalGeneration(config), dtype)


GRIDS = ((1, 2, 2), (1, 4, 2), (1, 4, 4))  # 1, 2 and 4 tokens


def sample(kind, images, seed):
    """One sample as an item: ids with `images` images in them, labels on the last 1 to 3 ids.

    Right after the images stands the question, so that the labels see them.
    """
    g = torch.Generator().manual_seed(seed)
    ids, pixels, grids = [1], [], []
    for _ in range(images):
        if kind == "llava":
            tokens = 4
            pixels.append(torch.randn(1, 3, 8, 8, generator=g))
        else:
            grid = GRIDS[int(torch.randint(len(GRIDS), (), generator=g))]
            patches = grid[0] * grid[1] * grid[2]
            tokens = patches // 4
            pixels.append(torch.randn(patches, 96, generator=g))
            grids.append(grid)
        ids += [START, *[IMAGE] * tokens, END]
    ids += torch.randint(3, 50, (int(torch.randint(4, 9, (), generator=g)),), generator=g).tolist()
    count = int(torch.randint(1, 4, (), generator=g))
    return {
        "input_ids": ids,
        "labels": [-100] * (len(ids) - count) + ids[-count:],
        "pixels": pixels,
        "grids": grids,
    }


def collate(items, kind, side="right", width=None):
    """A batch as the processors make it: images of all samples one behind another."""
    width = width or max(len(item["input_ids"]) for item in items)

    def pad(values, value):
        space = [value] * (width - len(values))
        return space + values if side == "left" else values + space

    ids = torch.tensor([pad(item["input_ids"], PAD) for item in items])
    batch = {
        "input_ids": ids,
        "attention_mask": torch.tensor([pad([1] * len(i["input_ids"]), 0) for i in items]),
        "labels": torch.tensor([pad(item["labels"], -100) for item in items]),
    }
    pixels = [image for item in items for image in item["pixels"]]
    if pixels:
        batch["pixel_values"] = torch.cat(pixels)
    if kind == "qwen":
        batch["mm_token_type_ids"] = (ids == IMAGE).long()
        grids = [grid for item in items for grid in item["grids"]]
        if grids:
            batch["image_grid_thw"] = torch.tensor(grids)
    return batch


MODELS = {"llava": llava, "qwen": qwen}
