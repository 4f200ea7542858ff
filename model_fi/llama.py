"""A lean Llama-family model that reads and writes our own KV cache.

One class for both roles, draft and target. Parameters carry transformers' names, so checkpoints,
GGUF name maps, quantisers and device maps work as they are; after loading, q/k/v and gate/up of
plain dense layers become views of one matrix (`fuse`), so that a pass makes fewer, larger products.

The forward pass is graph-safe: its shapes follow from its arguments' shapes, nothing in it reads a
device value on the host or copies from host memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from model_fi.attention import Attend, AttentionBackend, AttentionShape
from model_fi.dense import PACK_LIMIT, Dense, is_plain, lay_out
from model_fi.families import Dims, dims, draft_head
from model_fi.kv_cache import KVCache


class LayerInputs(NamedTuple):
    """What every layer of a pass needs besides its hidden states, on that layer's device."""

    cos: Tensor  # [t, 1, head_dim]
    sin: Tensor  # [t, 1, head_dim], first half negated
    slots: Tensor  # [t] long
    attend: Attend


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in fp32 (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.size, self.eps = size, eps
        self.scaled: tuple[Tensor, Tensor] | None = None  # set by `fuse`, fp32 only

    def fuse(self) -> None:
        """Prepare the short form: constants that turn the norm into four operations.

        `x / sqrt(mean(x^2) + eps) * w  =  x / hypot(|x|, sqrt(size * eps)) * (sqrt(size) * w)`
        """
        if self.weight.dtype == torch.float32:
            weight = self.weight.detach()
            floor = torch.full((1,), (self.size * self.eps) ** 0.5, device=weight.device)
            self.scaled = weight * self.size**0.5, floor

    def forward(self, x: Tensor) -> Tensor:
        """`[..., size]` -> the same shape and dtype."""
        if self.scaled is not None:
            weight, floor = self.scaled
            length = torch.linalg.vector_norm(x, 2, -1, True).hypot_(floor)
            return torch.div(x, length).mul_(weight)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary position embedding in place (arXiv 2104.09864), halves convention.

    `heads` `[t, h, d]`; `cos`, `sin` `[t, 1, d]` with the first half of `sin` negated.
    """
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(cos).addcmul_(swapped, sin)


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


class Attention(nn.Module):
    """Grouped-query self-attention over the cache."""

    def __init__(self, d: Dims) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = d.heads, d.kv_heads, d.head_dim
        q_size, kv_size = d.heads * d.head_dim, d.kv_heads * d.head_dim
        self.q_proj = nn.Linear(d.hidden, q_size, bias=d.qkv_bias)
        self.k_proj = nn.Linear(d.hidden, kv_size, bias=d.qkv_bias)
        self.v_proj = nn.Linear(d.hidden, kv_size, bias=d.qkv_bias)
        self.o_proj = nn.Linear(q_size, d.hidden, bias=d.o_bias)
        self.q_norm = RMSNorm(d.head_dim, d.eps) if d.qk_norm else None
        self.k_norm = RMSNorm(d.head_dim, d.eps) if d.qk_norm else None
        self.qkv: Dense | None = None  # set by `fuse` where the layers are plain
        self.out: Dense | None = None

    def fuse(self, pack: bool) -> None:
        """Lay plain dense layers out for speed: q/k/v as one product."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        self.qkv = lay_out(parts, pack) if is_plain(parts) else None
        self.out = lay_out([self.o_proj], pack) if is_plain([self.o_proj]) else None

    def forward(
        self, x: Tensor, residual: Tensor, layer: int, inputs: LayerInputs, cache: KVCache
    ) -> Tensor:
        """`residual` plus attention of `x`, `[t, hidden]`; stores keys and values in slots."""
        if self.qkv is not None:
            qkv = self.qkv(x)
        else:
            qkv = torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)
        heads = qkv.view(x.shape[0], self.heads + 2 * self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            heads = torch.cat((self.q_norm(q), self.k_norm(k), v), dim=1)
        rotate_(heads.narrow(1, 0, self.heads + self.kv_heads), inputs.cos, inputs.sin)
        cache.write_rows(layer, inputs.slots, heads.narrow(1, self.heads, 2 * self.kv_heads))
        q = heads.narrow(1, 0, self.heads)
        attended = inputs.attend(q, *cache.layer(layer))
        if self.out is not None:
            return self.out(attended, residual)
        return residual + self.o_proj(attended)


class GatedMLP(nn.Module):
    """`down(act(gate(x)) * up(x))`."""

    def __init__(self, d: Dims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d.hidden, d.intermediate, bias=d.mlp_bias)
        self.up_proj = nn.Linear(d.hidden, d.intermediate, bias=d.mlp_bias)
        self.down_proj = nn.Linear(d.intermediate, d.hidden, bias=d.mlp_bias)
        self.activation = ACT2FN[d.activation]
        self.gate_up: Dense | None = None  # set by `fuse` where the layers are plain
        self.down: Dense | None = None

    def fuse(self, pack: bool) -> None:
        """Lay plain dense layers out for speed: gate and up as one product."""
        parts = (self.gate_proj, self.up_proj)
        self.gate_up = lay_out(parts, pack) if is_plain(parts) else None
        self.down = lay_out([self.down_proj], pack) if is_plain([self.down_proj]) else None

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual` plus the MLP of `x`, `[t, hidden]`."""
        if self.gate_up is not None:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        inner = self.activation(gate).mul_(up)
        return self.down(inner, residual) if self.down else residual + self.down_proj(inner)


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each with its residual."""

    def __init__(self, d: Dims) -> None:
        super().__init__()
        self.self_attn = Attention(d)
        self.mlp = GatedMLP(d)
        self.input_layernorm = RMSNorm(d.hidden, d.eps)
        self.post_attention_layernorm = RMSNorm(d.hidden, d.eps)

    def forward(self, x: Tensor, layer: int, inputs: LayerInputs, cache: KVCache) -> Tensor:
        """`[t, hidden]` -> `[t, hidden]`."""
        x = self.self_attn(self.input_layernorm(x), x, layer, inputs, cache)
        return self.mlp(self.post_attention_layernorm(x), x)


class Decoder(nn.Module):
    """Embeddings, layers, final norm. A draft gets its target's `embed_tokens` after loading."""

    def __init__(self, d: Dims, own_embeddings: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(d.vocab, d.hidden) if own_embeddings else None
        self.layers = nn.ModuleList(DecoderLayer(d) for _ in range(d.layers))
        self.norm = RMSNorm(d.hidden, d.eps)


class LlamaForCausalLM_FI(PreTrainedModel):
    """A Llama-family language model for one sequence, or one token tree, at a time.

    Built by `model_fi.load_model`; a runner (`EagerRunner`) owns the cache and calls `forward`.
    """

    base_model_prefix = "model"
    _no_split_modules = ["DecoderLayer"]  # noqa: RUF012 (transformers' attributes)
    _supports_sdpa = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = [r"rotary_emb\.inv_freq"]  # noqa: RUF012 (old Llama files)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        d, head = dims(config), draft_head(config)
        self.dims = d
        self.rope: tuple[Tensor, float] | None = None  # frequencies, set once weights are loaded
        self.max_length = 0
        self.is_fused = self.borrows_head = False
        self.head: Any = None  # what computes logits; `lm_head` where it is not plain
        self.model = Decoder(d, own_embeddings=not head.shares_target_embeddings)
        borrowed = head.shares_target_embeddings and not head.own
        gathered = d.tied and head.reduced_size > 0
        self.lm_head: nn.Module | None = None
        if not borrowed and not gathered:
            self.lm_head = nn.Linear(d.hidden, head.reduced_size or d.vocab, bias=False)
        if not d.tied or self.lm_head is None:
            self._tied_weights_keys = {}
        if head.reduced_size:
            ids = torch.zeros(head.reduced_size, dtype=torch.long)
            self.register_buffer("head_token_ids", ids, persistent=True)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding (None in a draft that has not been given its target's)."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module | None:
        """The head."""
        return self.lm_head

    def _init_weights(self, module: nn.Module) -> None:
        # Nothing is ever initialised here: a parameter the checkpoint lacks is an error.
        pass

    def fuse(self) -> None:
        """Lay plain dense weights out for speed, once loading is over (see `dense`).

        A head that belongs to another model (a draft's target) is used as that model laid it out.
        """
        pack = sum(p.numel() * p.element_size() for p in self.parameters()) <= PACK_LIMIT
        for module in self.modules():
            if isinstance(module, Attention | GatedMLP):
                module.fuse(pack)
            elif isinstance(module, RMSNorm):
                module.fuse()
        if (
            isinstance(self.lm_head, nn.Linear)
            and not self.borrows_head
            and is_plain([self.lm_head])
        ):
            self.head = lay_out([self.lm_head], pack)
        self.is_fused = True

    def _apply(self, fn: Any, recurse: bool = True) -> LlamaForCausalLM_FI:
        # .to(), .half() and the like give every parameter its own storage: lay them out again.
        super()._apply(fn, recurse)
        if self.is_fused:
            self.fuse()
        return self

    @property
    def layer_devices(self) -> list[torch.device]:
        """Device of each layer: where its part of the cache belongs."""
        return [layer.input_layernorm.weight.device for layer in self.model.layers]

    @property
    def attention_shape(self) -> AttentionShape:
        """What attention backends must know."""
        d = self.dims
        return AttentionShape(d.heads, d.kv_heads, d.head_dim, self.compute_dtype)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of hidden states and cache (quantised weights have another)."""
        return self.model.norm.weight.dtype

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        *,
        cache: KVCache,
        rope: Tensor,
        backend: AttentionBackend,
        rows: Tensor | slice | None = None,
    ) -> Tensor:
        """One pass over `t` tokens; stores their keys and values in the cache.

        Args:
            token_ids: `[t]` long.
            positions: `[t]` long, below the length of `rope`.
            slots: `[t]` long, where each token's keys and values go.
            mask: `[t, S]` bool, True = attend; cache slots `[0, S)` are read, after writing.
            cache: the cache.
            rope: `[length, 2, head_dim]` table (`rope.rope_table`).
            backend: attention backend.
            rows: which tokens' logits are wanted, `[r]` long or a slice; None for all.

        Returns:
            Logits `[r, V]` fp32 on the first layer's device; -inf outside a reduced head.
        """
        cos, sin = rope.index_select(0, positions).unsqueeze(1).unbind(2)  # [t, 1, head_dim] each
        inputs: dict[torch.device, LayerInputs] = {}
        for device in dict.fromkeys(cache.devices):
            attend = backend.begin(mask.to(device), self.attention_shape)
            inputs[device] = LayerInputs(cos.to(device), sin.to(device), slots.to(device), attend)
        assert self.model.embed_tokens is not None, "a draft without its target's embeddings"
        hidden = self.model.embed_tokens(token_ids.to(_device_of(self.model.embed_tokens)))
        hidden = hidden.to(self.compute_dtype)
        for index, layer in enumerate(self.model.layers):
            device = cache.devices[index]
            hidden = layer(hidden.to(device), index, inputs[device], cache)
        if isinstance(rows, slice):
            hidden = hidden[rows]
        elif rows is not None:
            hidden = hidden.index_select(0, rows.to(hidden.device))
        return self.logits(hidden).to(token_ids.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: `[r, hidden]` -> `[r, V]` fp32, -inf outside a reduced head."""
        assert self.lm_head is not None, "a draft without its target's head"
        normed = self.model.norm(hidden.to(_device_of(self.model.norm)))
        normed = normed.to(_device_of(self.lm_head))
        scores = (self.head or self.lm_head)(normed).float()
        ids = getattr(self, "head_token_ids", None)
        if ids is None:
            return scores
        whole = torch.full((scores.shape[0], self.dims.vocab), -torch.inf, device=scores.device)
        return whole.index_copy_(1, ids, scores)


LlamaForCausalLM_TG = LlamaForCausalLM_FI  # the name scripts written for two classes import
