"""Rotary tables, made after loading.

Non-persistent buffers made in a model's `__init__` come back as garbage from transformers 5 (the
model is built on meta), so the tables are built here, once the weights are in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def rope_frequencies(config: Any, max_length: int) -> tuple[Tensor, float]:
    """Inverse frequencies `[head_dim / 2]` (fp32, CPU) and attention scaling for a cache length.

    They are transformers' own (`LlamaRotaryEmbedding`), asked at the last position of a sequence
    of `max_length`: where a rope type has two tables (longrope), that picks the one that fits.
    """
    with torch.device("cpu"):
        rotary = LlamaRotaryEmbedding(config)
        rotary(torch.zeros(1), torch.tensor([[max_length - 1]]))
    return rotary.inv_freq.float(), float(rotary.attention_scaling)


def rope_table(
    frequencies: tuple[Tensor, float],
    length: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Cosines and sines of positions `0 .. length - 1`: `[length, 2, head_dim]`.

    The first half of the sines is negated, as `rotate_` wants it. Computed in fp32, then rounded
    to `dtype`.
    """
    inv_freq, scaling = frequencies
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inv_freq)
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
    return table.to(device=device, dtype=dtype)
