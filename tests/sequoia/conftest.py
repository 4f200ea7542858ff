"""Tiny random Llama pairs: real models of our own class, with a vocabulary one can enumerate."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from model_fi import load_model
from sequoia.pair import Pair


def tiny_config(vocab_size: int, **changes) -> LlamaConfig:
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.5,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaConfig(**{**settings, **changes})


def save_tiny(path, vocab_size: int, seed: int, **changes) -> str:
    torch.manual_seed(seed)
    LlamaForCausalLM(tiny_config(vocab_size, **changes)).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    """(target, draft) folders by vocabulary size; the draft is the target with noise."""
    made: dict[int, tuple[str, str]] = {}

    def folders(vocab_size: int) -> tuple[str, str]:
        if vocab_size not in made:
            root = tmp_path_factory.mktemp(f"v{vocab_size}")
            target = save_tiny(root / "target", vocab_size, seed=0)
            model = LlamaForCausalLM.from_pretrained(target)
            torch.manual_seed(1)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            model.save_pretrained(root / "draft")
            made[vocab_size] = target, str(root / "draft")
        return made[vocab_size]

    return folders


@pytest.fixture(scope="session")
def tiny_pair(tiny_folders):
    """Pairs by vocabulary size, fp32, without a tokenizer."""
    made: dict[int, Pair] = {}

    def pair(vocab_size: int = 7) -> Pair:
        if vocab_size not in made:
            target, draft = tiny_folders(vocab_size)
            made[vocab_size] = Pair(
                None,
                load_model(target, dtype=torch.float32),
                load_model(draft, dtype=torch.float32),
                "tiny target",
                "tiny draft",
            )
        return made[vocab_size]

    return pair
