"""Tiny random checkpoints of every family, and transformers' own answer to compare with."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CLASSES = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
ROPES: dict[str, dict[str, Any]] = {
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 64,
    },
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama", {}),
    "llama3": ("llama", {"rope_theta": 500000.0, "rope_scaling": ROPES["llama3"]}),
    "llama3.2": (
        "llama",
        {"head_dim": 16, "tie_word_embeddings": True, "rope_scaling": ROPES["llama3"]},
    ),
    "tinyllama": ("llama", {"num_key_value_heads": 1}),
    "smollm2": (
        "llama",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}
        | {"tie_word_embeddings": True, "rope_theta": 100000.0},
    ),
    "vicuna": ("llama", {"num_key_value_heads": 6, "rope_scaling": ROPES["linear"]}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": 256, "head_dim": 16}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 20, "attention_bias": True}),
}


def make_config(name: str, **changes: Any) -> PretrainedConfig:
    """A tiny config of the named family."""
    kind, extra = FAMILIES[name]
    return build_config(kind, **{**extra, **changes})


def build_config(kind: str, **changes: Any) -> PretrainedConfig:
    """A tiny config of a model type."""
    settings = copy.deepcopy({**SIZES, **changes})  # transformers fills in the rope dicts it gets
    if "longrope" in str(settings.get("rope_scaling")):
        settings.setdefault("original_max_position_embeddings", 64)
    return CLASSES[kind](**settings)


def save_checkpoint(config: PretrainedConfig, folder: Path, seed: int = 0) -> Any:
    """Save a random transformers model of this config to `folder` and return it."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger than the usual init, and not 0 or 1 for biases and norms: errors must show.
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def reference(model: Any, token_ids: Tensor, start: int = 0) -> Tensor:
    """Logits `[t, V]` of transformers' forward pass on plain text that begins at a position."""
    positions = start + torch.arange(len(token_ids)).unsqueeze(0)
    out = model(input_ids=token_ids.unsqueeze(0), position_ids=positions, use_cache=False)
    return out.logits[0].float()


@pytest.fixture(scope="session")
def tiny() -> Any:
    """This module: test files cannot import their neighbours under importlib mode."""
    return sys.modules[__name__]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
