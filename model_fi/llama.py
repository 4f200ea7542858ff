"""A lean Llama-family model that reads and writes our own KV cache.

One class for both roles, draft and target. Parameters carry transformers' names, so checkpoints,
GGUF name maps, quantisers and device maps work as they are. The modules here only hold parameters;
after loading, `fuse` makes one `Block` per layer from them, which computes with fewer, larger
products (q/k/v and gate/up of plain dense layers become views of one matrix).

The forward pass is graph-safe: its shapes follow from its arguments' shapes, nothing in it reads a
device value on the host or copies from host memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_fi.attention import AttentionBackend, AttentionShape
from model_fi.block import Block, BlockInputs, Norm
from model_fi.dense import PACK_LIMIT, Projection, lay_out
from model_fi.families import Dims, dims, draft_head
from model_fi.kv_cache import KVCache


class RMSNorm(nn.Module):
    """Parameter of a root-mean-square norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps


class Attention(nn.Module):
    """Parameters of grouped-query self-attention."""

    def __init__(self, d: Dims) -> None:
        super().__init__()
        q_size, kv_size = d.heads * d.head_dim, d.kv_heads * d.head_dim
        self.q_proj = nn.Linear(d.hidden, q_size, bias=d.qkv_bias)
        self.k_proj = nn.Linear(d.hidden, kv_size, bias=d.qkv_bias)
        self.v_proj = nn.Linear(d.hidden, kv_size, bias=d.qkv_bias)
        self.o_proj = nn.Linear(q_size, d.hidden, bias=d.o_bias)
        self.q_norm = RMSNorm(d.head_dim, d.eps) if d.qk_norm else None
        self.k_norm = RMSNorm(d.head_dim, d.eps) if d.qk_norm else None


class GatedMLP(nn.Module):
    """Parameters of `down(act(gate(x)) * up(x))`."""

    def __init__(self, d: Dims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d.hidden, d.intermediate, bias=d.mlp_bias)
        self.up_proj = nn.Linear(d.hidden, d.intermediate, bias=d.mlp_bias)
        self.down_proj = nn.Linear(d.intermediate, d.hidden, bias=d.mlp_bias)


class DecoderLayer(nn.Module):
    """Parameters of one layer; `block.Block` computes it."""

    def __init__(self, d: Dims) -> None:
        super().__init__()
        self.self_attn = Attention(d)
        self.mlp = GatedMLP(d)
        self.input_layernorm = RMSNorm(d.hidden, d.eps)
        self.post_attention_layernorm = RMSNorm(d.hidden, d.eps)


class Decoder(nn.Module):
    """Embeddings, layers, final norm. A draft gets its target's `embed_tokens` after loading."""

    def __init__(self, d: Dims, own_embeddings: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(d.vocab, d.hidden) if own_embeddings else None
        self.layers = nn.ModuleList(DecoderLayer(d) for _ in range(d.layers))
        self.norm = RMSNorm(d.hidden, d.eps)


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


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
        self.borrows_head = False
        # What computes, made from the parameters by `fuse`.
        self.blocks: list[Block] = []
        self.final_norm: Norm | None = None
        self.head: Projection | None = None
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
        """Lay plain dense weights out for speed, once loading is over (see `dense`, `block`).

        Weights must not change afterwards: a CPU model computes from copies too. A head that
        belongs to another model (a draft's target) is used as that model laid it out.
        """
        pack = sum(p.numel() * p.element_size() for p in self.parameters()) <= PACK_LIMIT
        self.blocks = [Block(layer, self.dims, pack) for layer in self.model.layers]
        self.final_norm = Norm(self.model.norm)
        if self.lm_head is not None and not self.borrows_head:
            self.head = lay_out([self.lm_head], pack)

    def _apply(self, fn: Any, recurse: bool = True) -> LlamaForCausalLM_FI:
        # .to(), .half() and the like give every parameter its own storage: lay them out again.
        super()._apply(fn, recurse)
        if self.blocks:
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
        inputs: dict[torch.device, BlockInputs] = {}
        for device in dict.fromkeys(cache.devices):
            attend = backend.begin(mask.to(device), self.attention_shape)
            inputs[device] = BlockInputs(cos.to(device), sin.to(device), slots.to(device), attend)
        several = len(inputs) > 1
        assert self.blocks, "a model that load_model or prepare_model has not finished"
        assert self.model.embed_tokens is not None, "a draft without its target's embeddings"
        hidden = self.model.embed_tokens(token_ids.to(_device_of(self.model.embed_tokens)))
        hidden = hidden.to(self.compute_dtype)
        for index, block in enumerate(self.blocks):
            device = cache.devices[index]
            if several:
                hidden = hidden.to(device)
            hidden = block(hidden, index, inputs[device], cache)
        if isinstance(rows, slice):
            hidden = hidden[rows]
        elif rows is not None:
            hidden = hidden.index_select(0, rows.to(hidden.device))
        return self.logits(hidden).to(token_ids.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: `[r, hidden]` -> `[r, V]` fp32, -inf outside a reduced head."""
        assert self.lm_head is not None, "a draft without its target's head"
        assert self.final_norm is not None and self.head is not None  # noqa: PT018
        normed = self.final_norm(hidden.to(_device_of(self.model.norm)))
        scores = self.head(normed.to(_device_of(self.lm_head))).float()
        ids = getattr(self, "head_token_ids", None)
        if ids is None:
            return scores
        whole = torch.full((scores.shape[0], self.dims.vocab), -torch.inf, device=scores.device)
        return whole.index_copy_(1, ids, scores)


LlamaForCausalLM_TG = LlamaForCausalLM_FI  # the name scripts written for two classes import
