"""The key/value cache: preallocated slots that the engine addresses by number.

A *slot* is one row of the cache. Who sits in which slot, and which slots a query may see, is the
engine's business (slots and masks are arguments of every pass); the cache only stores rows. Slots
are filled with zeros once, so a slot that a mask hides is finite and weighs exactly nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Keys and values of every layer, `slots` rows each.

    Storage is `[layers, 2, kv_heads, slots, head_dim]`, allocated here and never again. Layers
    that live on several devices (`device_map`) are stored as one block per run of equal devices.

    Args:
        num_layers: decoder layers.
        num_kv_heads: key/value heads per layer.
        slots: rows per layer (tokens that fit).
        head_dim: width of one head.
        dtype: of the stored rows.
        device: one device, or one per layer.

    Raises:
        ValueError: a size below 1, or a list of devices of another length than `num_layers`.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        slots: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str | Sequence[torch.device | str],
    ) -> None:
        sizes = {
            "num_layers": num_layers,
            "num_kv_heads": num_kv_heads,
            "slots": slots,
            "head_dim": head_dim,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if isinstance(device, str | torch.device):
            device = [device] * num_layers
        devices = [torch.device(d) for d in device]
        if len(devices) != num_layers:
            raise ValueError(f"{len(devices)} devices for {num_layers} layers")
        self.num_layers, self.num_kv_heads, self.slots, self.head_dim = sizes.values()
        self.dtype = dtype
        self.devices = devices  # of each layer
        self._blocks: list[Tensor] = []
        first = 0
        for last in range(1, num_layers + 1):
            if last == num_layers or self.devices[last] != self.devices[first]:
                shape = (last - first, 2, num_kv_heads, slots, head_dim)
                self._blocks.append(torch.zeros(shape, dtype=dtype, device=self.devices[first]))
                first = last
        # Views made once: a layer's rows for writing [2 * kv_heads, slots, head_dim], its k and v.
        self._rows = [layer.flatten(0, 1) for block in self._blocks for layer in block]
        self._layers = [(layer[0], layer[1]) for block in self._blocks for layer in block]

    @property
    def k(self) -> Tensor:
        """All keys, a view `[layers, kv_heads, slots, head_dim]` (one device only)."""
        return self._single_block()[:, 0]

    @property
    def v(self) -> Tensor:
        """All values, a view `[layers, kv_heads, slots, head_dim]` (one device only)."""
        return self._single_block()[:, 1]

    @property
    def num_bytes(self) -> int:
        """Bytes of the storage."""
        return sum(block.numel() * block.element_size() for block in self._blocks)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, views `[kv_heads, slots, head_dim]`."""
        return self._layers[index]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store rows `k`, `v` `[t, kv_heads, head_dim]` of one layer in `slots` `[t]`.

        A slot named twice must be given the same row twice (which of the two stays is open).
        """
        self.write_rows(layer, slots, torch.cat((k, v), dim=1))

    def write_rows(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """`write` with k and v side by side: `rows` `[t, 2 * kv_heads, head_dim]`, one copy."""
        self._rows[layer].index_copy_(1, slots, rows.transpose(0, 1))

    def compact(self, source_slots: Tensor, start: Tensor | int) -> None:
        """Move rows `source_slots` `[c]` to slots `start .. start + c - 1`, in every layer.

        Everything is read before anything is written, so source and destination may overlap.
        `start` may be a tensor `[]` on the cache's device; nothing is read on the host.
        """
        count = source_slots.shape[0]
        for block in self._blocks:
            source = source_slots.to(block.device)
            if isinstance(start, Tensor):
                target = torch.arange(count, device=block.device) + start.to(block.device)
            else:
                target = torch.arange(start, start + count, device=block.device)
            rows = block.flatten(0, 2)  # [layers * 2 * kv_heads, slots, head_dim]
            rows.index_copy_(1, target, rows.index_select(1, source))

    def truncate(self, length: int) -> None:
        """Forget slots `length` and up: they become zeros, as when the cache was new.

        Raises:
            ValueError: `length` is not within `0 .. slots`.
        """
        if not 0 <= length <= self.slots:
            raise ValueError(f"cannot truncate to {length}: the cache has {self.slots} slots")
        for block in self._blocks:
            block[:, :, :, length:].zero_()

    def reset(self) -> None:
        """Forget everything."""
        self.truncate(0)

    def _single_block(self) -> Tensor:
        if len(self._blocks) > 1:
            raise ValueError("this cache is spread over several devices: use layer(index)")
        return self._blocks[0]
