"""Attention backends: how queries read the used part of the cache.

A backend is asked once per forward pass (`begin`) and hands back one function that every layer
calls. What depends on the mask is computed once there, not once per layer. Adding a backend is a
class with a `begin` of this signature; it need not know anything else of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

# attend(q [t, heads, head_dim], k [kv_heads, slots, head_dim], v likewise) -> [t, heads * head_dim]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttentionShape(NamedTuple):
    """What a backend must know of the model: constant for a run."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype


class AttentionBackend(Protocol):
    """`begin` is called once per forward pass, the function it returns once per layer."""

    name: str

    def plan(self, t: int, bucket: int) -> None:
        """Host work ahead of passes of `t` queries over cache slots `[0, bucket)`.

        Called outside any capture, any number of times. Most backends need none.
        """
        return None

    def begin(self, mask: Tensor, shape: AttentionShape) -> Attend:
        """Prepare a pass of `t` queries over cache slots `[0, S)`; `mask` is `[t, S]` bool."""
        ...


def fold_queries(q: Tensor, num_kv_heads: int) -> Tensor:
    """`[t, heads, d]` -> `[kv_heads, t * group, d]`: query heads that share a KV head become rows.

    Keys and values are then read once per KV head, and never expanded (grouped-query attention).
    """
    t, heads, head_dim = q.shape
    group = heads // num_kv_heads
    if t == 1:
        return q.reshape(num_kv_heads, group, head_dim)
    q = q.view(t, num_kv_heads, group, head_dim).transpose(0, 1)
    return q.reshape(num_kv_heads, t * group, head_dim)


def unfold_heads(out: Tensor, t: int) -> Tensor:
    """`[kv_heads, t * group, d]` -> `[t, heads * d]`, the inverse of `fold_queries`."""
    if t == 1:
        return out.reshape(1, -1)
    num_kv_heads, rows, head_dim = out.shape
    out = out.view(num_kv_heads, t, rows // t, head_dim).transpose(0, 1)
    return out.reshape(t, num_kv_heads * (rows // t) * head_dim)


def folded_bias(mask: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Additive mask `[t * group, S]`: 0 where a query attends, the lowest finite number elsewhere.

    The lowest finite number and not -inf: its exponential is exactly zero beside any real score,
    and a row that sees nothing at all stays finite.
    """
    t, bucket = mask.shape
    lowest = torch.finfo(dtype).min
    bias = torch.full((t, 1, bucket), lowest, dtype=dtype, device=mask.device)
    bias.masked_fill_(mask.unsqueeze(1), 0.0)
    return bias.expand(t, group, bucket).reshape(t * group, bucket)


class MatmulAttention(AttentionBackend):
    """Attention spelled out as two batched matrix products: the reference, and fast on a CPU."""

    name = "matmul"

    def begin(self, mask: Tensor, shape: AttentionShape) -> Attend:
        """See `AttentionBackend.begin`."""
        t, bucket = mask.shape
        scale = shape.head_dim**-0.5
        fp32 = shape.dtype == torch.float32
        bias = folded_bias(mask, shape.num_heads // shape.num_kv_heads, shape.dtype)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            folded = fold_queries(q, shape.num_kv_heads)
            keys = k.narrow(1, 0, bucket).transpose(1, 2)
            scores = torch.baddbmm(bias, folded, keys, alpha=scale)  # [kv_heads, t * group, S]
            weights = scores.softmax(-1) if fp32 else scores.softmax(-1, torch.float32).to(v.dtype)
            return unfold_heads(torch.bmm(weights, v.narrow(1, 0, bucket)), t)

        return attend


class SdpaAttention(AttentionBackend):
    """`scaled_dot_product_attention` on folded heads: for devices with fused kernels."""

    name = "sdpa"

    def begin(self, mask: Tensor, shape: AttentionShape) -> Attend:
        """See `AttentionBackend.begin`."""
        t, bucket = mask.shape
        scale = shape.head_dim**-0.5
        bias = folded_bias(mask, shape.num_heads // shape.num_kv_heads, shape.dtype)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            folded = fold_queries(q, shape.num_kv_heads).unsqueeze(0)
            keys, values = k[None, :, :bucket], v[None, :, :bucket]
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=bias, scale=scale)
            return unfold_heads(out[0], t)

        return attend


def default_backend(device: torch.device) -> AttentionBackend:
    """Fused kernels where there are some, plain products elsewhere."""
    return MatmulAttention() if device.type == "cpu" else SdpaAttention()
