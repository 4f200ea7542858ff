"""Memory predicted before anything is loaded, so that what cannot fit is refused early."""

from __future__ import annotations

from typing import Any

import psutil
import torch

from model_fi import predict_memory
from model_fi.loading import resolve_dtype
from model_fi.memory import default_device

TREE_MARGIN = 64  # slots for a tree beyond the context, until the tree is known
HOST_TABLES = 4  # on a CPU: the target's logits, the draft's logits and probabilities, and a level
TABLES = 12  # fp32 rows of the vocabulary per node that a step holds at once (counted on meta)
GIB = 2**30


def available_memory(device: Any) -> int:
    """Free bytes of the device (or of the machine, for a CPU)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def check_memory(sources: list[Any], dtype: Any, device: Any, max_length: int) -> None:
    """Refuse models whose weights, or whose cache of ``max_length`` tokens, cannot fit.

    ``sources``: the distinct models (``sequoia.pair.Source``). Raises ValueError with the largest
    context that does fit.
    """
    where = default_device(device)
    free = available_memory(where)

    def needed(slots: int) -> int:
        return sum(predicted_bytes(source, dtype, where, slots) for source in sources)

    if needed(max_length + TREE_MARGIN) <= free:
        return
    fixed = needed(0)
    context = (free - fixed) // (needed(1) - fixed) - TREE_MARGIN
    way_out = (
        f"the largest context that fits is max_length={context} with a tree of {TREE_MARGIN} nodes"
        if context >= 2
        else "the weights alone do not fit: choose a smaller model, another dtype, or device_map"
    )
    raise ValueError(
        f"models and caches for max_length={max_length} need "
        f"{needed(max_length + TREE_MARGIN) / GIB:.1f} GiB, {free / GIB:.1f} GiB are free: "
        f"{way_out}"
    )


def check_tree_memory(size: int, vocab_size: int, device: torch.device) -> None:
    """Refuse a tree whose rows cannot fit: ValueError with the most nodes that do."""
    free = available_memory(device)
    node = (TABLES if device.type == "cuda" else HOST_TABLES) * vocab_size * 4
    if size * node > free:
        raise ValueError(
            f"a tree of {size} nodes needs about {size * node / GIB:.1f} GiB for its rows of "
            f"{vocab_size} probabilities, {free / GIB:.1f} GiB are free: at most {free // node} "
            "nodes fit"
        )


def predicted_bytes(source: Any, dtype: Any, device: torch.device, slots: int) -> int:
    """Weights, and the cache of one decoder with that many slots, in bytes."""
    chosen = resolve_dtype(dtype, source.config, device, is_gguf=source.gguf_file is not None)
    return predict_memory(source.config, chosen, slots, device=device)["total"]
