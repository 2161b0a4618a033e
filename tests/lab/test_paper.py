"""Presets of the paper's models: settings, sizes as published, nothing downloaded."""

import pytest
import torch
from typer.testing import CliRunner

from oasis.commands import app
from oasis.lab import paper
from oasis.lab.config import RunConfig

# As published with the weights.
PARAMETERS = {
    "llava-1.5-7b": 7_063_427_072,
    "llava-1.5-13b": 13_351_494_656,
    "qwen2.5-vl-7b": 8_292_166_656,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-8b": 8_190_735_360,
}
HEADS = {
    "llava-1.5-7b": (32064, 4096),
    "llava-1.5-13b": (32064, 5120),
    "qwen2.5-vl-7b": (152064, 3584),
    "llama-3.1-8b": (128256, 4096),
    "qwen3-8b": (151936, 4096),
}


@pytest.mark.parametrize("name", paper.NAMES)
def test_the_models_have_their_published_sizes(name):
    model = paper.empty_model(name)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert tuple(model.get_output_embeddings().weight.shape) == HEADS[name]


def test_lora_of_a_known_size():
    # 7 matrices of a block of Llama 3.1: q, o; k, v; gate, up, down.
    block = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert paper.lora_weights(paper.empty_model("llama-3.1-8b"), 128) == 32 * 128 * block


def test_a_preset_stands_for_settings_that_others_replace():
    config = RunConfig.from_mapping({"preset": "qwen3-8b"})
    assert (config.model, config.rank, config.learning_rate) == ("Qwen/Qwen3-8B", 128, 3e-4)
    assert (config.lr_schedule, config.iterations_per_sample) == ("cosine", 0.0625)
    assert config.benchmark is None and config.paper == "qwen3-8b"
    other = RunConfig.from_mapping({"preset": "llava-1.5-7b", "rank": 8})
    assert other.rank == 8 and other.learning_rate == 2e-5
    both = RunConfig.from_mapping({"preset": "trace,llama-3.1-8b", "data": "TRACE"})
    assert (both.benchmark, both.paper) == ("trace", "llama-3.1-8b")
    assert both.tasks[0] == "NumGLUE-ds" and both.rank == 128
    for wrong in ("qwen3-8b,llama-3.1-8b", "trace,long_sequence"):
        with pytest.raises(ValueError, match="preset: .* expected at most one"):
            RunConfig.from_mapping({"preset": wrong, "data": "x"})


def test_a_dry_run_of_a_preset_downloads_nothing(monkeypatch):
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = CliRunner().invoke(app, ["train", "preset=qwen3-8b", "ratio=0.0625", "--dry-run"])
    assert found.exit_code == 0, found.output
    # 40,000 arrivals, a batch of 16 for every 16 of them, a sixteenth trained on.
    assert "TRACE: 40,000 arrivals, 2,500 steps, 40,000 candidates" in found.output
    assert "about 2,500 samples trained on" in found.output
    assert "output head 151,936 x 4,096 (of its own)" in found.output
    assert "the paper does not say: alpha" in found.output
    assert "weights in bfloat16 15.26 GiB" in found.output
