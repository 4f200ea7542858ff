"""What computes one decoder layer: few operations, no module machinery.

At batch 1 a CPU pass spends a good part of its time between the matrix products, so a layer is a
plain object that holds just what it needs, in the form it needs it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN

from model_fi.attention import Attend
from model_fi.dense import lay_out
from model_fi.families import Dims
from model_fi.kv_cache import KVCache


class BlockInputs(NamedTuple):
    """What every layer of a pass needs besides its hidden states, on that layer's device."""

    cos: Tensor  # [t, 1, head_dim]
    sin: Tensor  # [t, 1, head_dim], first half negated
    slots: Tensor  # [t] long
    attend: Attend


class Norm:
    """Root-mean-square norm over the last dimension, computed in fp32 (arXiv 1910.07467).

    On a CPU in fp32 it is written with as few operations as there are::

        x / sqrt(mean(x^2) + eps) * w  =  x / (hypot(|x|, sqrt(size * eps)) / sqrt(size)) * w

    Args:
        module: holds `weight` `[size]` and `eps`.
    """

    def __init__(self, module: Any) -> None:
        self.weight, self.eps = module.weight.detach(), module.eps
        self.floor: Tensor | None = None
        if self.weight.dtype == torch.float32 and self.weight.device.type == "cpu":
            size = self.weight.shape[0]
            self.scale = size**-0.5
            self.floor = torch.full((1,), (size * self.eps) ** 0.5, device=self.weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., size]` -> the same shape and dtype."""
        if self.floor is not None:
            length = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self.floor).mul_(self.scale)
            return torch.div(x, length).mul_(self.weight)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)  # one kernel on CUDA


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary position embedding in place (arXiv 2104.09864), halves convention.

    `heads` `[t, h, d]`; `cos`, `sin` `[t, 1, d]` with the first half of `sin` negated.
    """
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(cos).addcmul_(swapped, sin)


class Block:
    """One decoder layer: pre-norm attention and gated MLP, each with its residual.

    Args:
        layer: parameters (`llama.DecoderLayer`); plain dense ones are laid out anew (`dense`).
        d: sizes.
        pack: see `dense.lay_out`.
    """

    def __init__(self, layer: Any, d: Dims, pack: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads, self.head_dim = d.heads, d.kv_heads, d.head_dim
        self.norm1 = Norm(layer.input_layernorm)
        self.norm2 = Norm(layer.post_attention_layernorm)
        self.q_norm = Norm(attention.q_norm) if d.qk_norm else None
        self.k_norm = Norm(attention.k_norm) if d.qk_norm else None
        self.qkv = lay_out([attention.q_proj, attention.k_proj, attention.v_proj], pack)
        self.out = lay_out([attention.o_proj], pack)
        self.gate_up = lay_out([mlp.gate_proj, mlp.up_proj], pack)
        self.down = lay_out([mlp.down_proj], pack)
        self.activation = F.silu if d.activation == "silu" else ACT2FN[d.activation]

    def __call__(self, x: Tensor, layer: int, inputs: BlockInputs, cache: KVCache) -> Tensor:
        """`[t, hidden]` -> `[t, hidden]`; stores keys and values of layer `layer` in its slots."""
        heads = self.qkv(self.norm1(x))
        heads = heads.view(x.shape[0], self.heads + 2 * self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            heads = torch.cat((self.q_norm(q), self.k_norm(k), v), dim=1)
        rotate_(heads.narrow(1, 0, self.heads + self.kv_heads), inputs.cos, inputs.sin)
        q, kv = heads.split((self.heads, 2 * self.kv_heads), dim=1)
        cache.write_rows(layer, inputs.slots, kv)
        x = self.out(inputs.attend(q, *cache.layer(layer)), x)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return self.down(self.activation(gate).mul_(up), x)
