"""Pairs with random weights, made on the device: right shapes and costs, nothing downloaded."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig

from model_fi import LlamaForCausalLM_FI, prepare_model
from sequoia.pair import Pair


def llama_config(**sizes: Any) -> LlamaConfig:
    """A Llama config without special tokens, so that no text ends early."""
    return LlamaConfig(
        **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}, **sizes
    )


def random_model(
    config: Any, dtype: torch.dtype, device: torch.device | str, seed: int = 0, spread: float = 1.0
) -> LlamaForCausalLM_FI:
    """A model whose hidden states keep their size: weights ~ N(0, spread^2 / fan-in), norms 1.

    ``spread`` above 1 makes peaked, text-like rows.
    """
    with torch.device("meta"):
        model = LlamaForCausalLM_FI(config)
    model = model.to(dtype).to_empty(device=device)
    model.tie_weights()
    generator = None
    if torch.device(device).type != "meta":  # there no generator exists, and no value either
        generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                std = spread * parameter.shape[1] ** -0.5
                parameter.normal_(0.0, std, generator=generator)
    return prepare_model(model, config.max_position_embeddings)


def random_pair(
    target: Any, draft: Any, dtype: torch.dtype, device: torch.device | str, spread: float = 1.0
) -> Pair:
    """Two independent models: the draft agrees with the target by chance only."""
    return Pair(
        None,
        random_model(target, dtype, device, 0, spread),
        random_model(draft, dtype, device, 1, spread),
        "random target",
        "random draft",
    )


def near_pair(
    config: Any, dtype: torch.dtype, device: torch.device | str, noise: float = 0.1
) -> Pair:
    """A target with peaked rows and, as its draft, the same weights with relative noise."""
    pair = random_pair(config, config, dtype, device, spread=2.0)
    assert pair.draft is not None
    with torch.no_grad():
        theirs = zip(pair.draft.parameters(), pair.target.parameters(), strict=True)
        for mine, target in theirs:
            mine.mul_(noise).add_(target, alpha=(1 - noise**2) ** 0.5)
    return pair
