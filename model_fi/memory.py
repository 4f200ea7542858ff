"""What a model and its cache will take, predicted from the config alone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from model_fi.dense import PACK_LIMIT, can_pack
from model_fi.families import dims, draft_head
from model_fi.llama import LlamaForCausalLM_FI


def default_device(device: str | torch.device | None) -> torch.device:
    """`device`, or CUDA if there is one, or the CPU. ValueError for a device that is not there."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device {device!r} is no device: use cpu, cuda or cuda:N") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device!r}: torch finds {torch.cuda.device_count()} CUDA devices here"
        )
    return where


def predict_memory(
    config: Any,
    dtype: torch.dtype,
    slots: int,
    *,
    device: str | torch.device | None = None,
) -> dict[str, int]:
    """Bytes that a model and one runner of `slots` will hold, before anything is loaded.

    Args:
        config, dtype: the model's.
        slots: of the runner's cache.
        device: where it will run, None as in `load_model`.

    Returns:
        `weights` (dense, in `dtype`), `packed` (their second copy on a CPU, see `dense`), `cache`,
        `rope` and their sum, `total`.
    """
    d, head = dims(config), draft_head(config)
    size = torch.empty((), dtype=dtype).element_size()
    with torch.device("meta"):
        model = LlamaForCausalLM_FI(copy.deepcopy(config))
    weights = sum(p.numel() for p in model.parameters()) * size
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)) * size
    if model.lm_head is None and head.reduced_size:
        gathered = head.reduced_size * d.hidden * size  # rows taken from the whole head
        weights, matrices = weights + gathered, matrices + gathered
    if can_pack(torch.empty(0, dtype=dtype, device=default_device(device))):
        packed = matrices if weights <= PACK_LIMIT else 0
    else:
        packed = 0
    rows = 2 * slots * d.head_dim * size
    sizes = {
        "weights": weights,
        "packed": packed,
        "cache": d.layers * d.kv_heads * rows,
        "rope": rows,
    }
    return {**sizes, "total": sum(sizes.values())}
