"""Runners: a model, its cache and its tables behind one `forward`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model_fi.attention import AttentionBackend
from model_fi.flashinfer_backend import choose_backend
from model_fi.kv_cache import KVCache
from model_fi.llama import LlamaForCausalLM_FI
from model_fi.masks import causal_mask
from model_fi.rope import rope_table

BUCKET = 64  # prefill reads the cache in multiples of this many slots


class EagerRunner:
    """Runs every pass as it is called. Everything it needs is allocated here, once.

    Args:
        model: the model; several runners may share one (each has its own cache).
        slots: cache slots; positions stay below this number too.
        backend: attention backend, or its name: `auto` (the device's default), `sdpa`,
            `flashinfer`.

    Raises:
        ValueError: `slots` below 1, an unknown name.
    """

    def __init__(
        self,
        model: LlamaForCausalLM_FI,
        slots: int,
        backend: AttentionBackend | str | None = None,
    ) -> None:
        assert model.rope is not None, "a model that load_model or prepare_model has not finished"
        self.model = model
        d, devices = model.dims, model.layer_devices
        self.device = devices[0]
        self.cache = KVCache(d.layers, d.kv_heads, slots, d.head_dim, model.compute_dtype, devices)
        if backend is None or isinstance(backend, str):
            backend = choose_backend(backend or "auto", model.attention_shape, slots, devices)
        self.backend = backend
        self.rope = rope_table(model.rope, slots, model.compute_dtype, self.device)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.model.dims.vocab

    @property
    def config(self) -> Any:
        """The model's transformers config."""
        return self.model.config

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
        rows: Tensor | slice | None = None,
    ) -> Tensor:
        """One pass; see `LlamaForCausalLM_FI.forward`.

        Args:
            token_ids, positions, slots: `[t]` long.
            mask: `[t, S]` bool, True = attend; `S` is at most the number of slots.
            rows: `[r]` long, a slice, or None for all.

        Returns:
            Logits `[r, V]` fp32.

        Raises:
            ValueError: a mask of another shape.
        """
        if mask.shape[0] != token_ids.shape[0] or not 1 <= mask.shape[1] <= self.cache.slots:
            raise ValueError(
                f"a mask of shape {tuple(mask.shape)} for {token_ids.shape[0]} tokens and "
                f"{self.cache.slots} slots: it must be [tokens, at most as many slots]"
            )
        return self.model(
            token_ids,
            positions,
            slots,
            mask,
            cache=self.cache,
            rope=self.rope,
            backend=self.backend,
            rows=rows,
        )

    def plan(self, t: int, bucket: int) -> None:
        """Let the attention backend prepare passes of `t` tokens over `bucket` cache slots."""
        self.backend.plan(t, bucket)

    def prefill(self, token_ids: Tensor, start: int = 0, chunk: int = 512) -> Tensor:
        """Store a piece of plain text in slots `start ..`, in chunks that bound the memory used.

        Args:
            token_ids: `[t]` long, `t >= 1`; the token at index `i` has slot and position `start+i`.
            start: slots already filled.
            chunk: most tokens per pass.

        Returns:
            Logits of the last token, `[1, V]` fp32.

        Raises:
            ValueError: no tokens, or more than the cache holds.
        """
        total = token_ids.shape[0]
        end = start + total
        if total < 1:
            raise ValueError("nothing to prefill: no tokens")
        if start < 0 or end > self.cache.slots:
            raise ValueError(
                f"{total} tokens from slot {start} do not fit {self.cache.slots} slots"
            )
        logits = None
        for first in range(start, end, chunk):
            last = min(first + chunk, end)
            positions = torch.arange(first, last, device=self.device)
            bucket = min(-(-last // BUCKET) * BUCKET, self.cache.slots)
            piece = token_ids[first - start : last - start]
            wanted = slice(-1, None) if last == end else slice(0, 0)
            mask = causal_mask(positions, bucket)
            logits = self.forward(piece, positions, positions, mask, wanted)
        assert logits is not None
        return logits
