"""Random language models of a few thousand parameters."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, PAD = 61, 0


def tiny_model(kind="llama", seed=0, dtype=torch.float64, **config):
    """A causal language model of the given architecture, hidden size 32, two layers."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **config,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    with torch.no_grad():  # wide enough for probabilities that differ
        model.get_output_embeddings().weight.normal_(std=0.3)
    return model.to(dtype)


def with_lora(model, targets=("q_proj", "v_proj"), **config):
    """LoRA of rank 4 whose B is not zero, so that it has an effect and all gradients exist."""
    dtype = model.get_output_embeddings().weight.dtype
    model = get_peft_model(model, LoraConfig(r=4, target_modules=list(targets), **config))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.to(dtype)


def tiny_llama(dtype=torch.float64, **config):
    return with_lora(tiny_model("llama", dtype=dtype, **config))


LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
