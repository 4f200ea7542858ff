"""Boolean attention masks over cache slots: True = the query attends to that slot.

Masks are `[t, bucket]` for `t` queries. `bucket` is a number of slots known on the host, so that
shapes stay constant while the number of known tokens `n` is a value on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tree_mask(n: Tensor, ancestor_mask: Tensor, bucket: int) -> Tensor:
    """Mask of tree nodes: the known prefix, then ancestors and self.

    Node `i` sits in slot `n - 1 + i` (node 0, the root, is the last known token). For a root with
    children 1 and 2 and a child 3 of node 1, `n = 4`, `bucket = 8` and all four nodes as queries::

        slot      0 1 2 | 3 4 5 6 | 7        slots 0 .. n-2 are the prefix,
        node      . . . | 0 1 2 3 | .        slots n-1 .. n-1+m-1 the nodes,
        query 0   1 1 1 | 1 0 0 0 | 0        what follows is hidden
        query 1   1 1 1 | 1 1 0 0 | 0
        query 2   1 1 1 | 1 0 1 0 | 0
        query 3   1 1 1 | 1 1 0 1 | 0

    Args:
        n: number of known tokens, `[]` long, at least 1.
        ancestor_mask: `[t, m]` bool, rows of the tree's ancestor-or-self mask.
        bucket: number of slots, at least `n - 1 + m` for the whole tree to be seen.

    Returns:
        `[t, bucket]` bool on `ancestor_mask`'s device.
    """
    num_nodes = ancestor_mask.shape[1]
    node = torch.arange(1, bucket + 1, device=ancestor_mask.device) - n  # [bucket] node of a slot
    is_node = (node >= 0) & (node < num_nodes)
    columns = ancestor_mask.index_select(1, node.clamp(0, num_nodes - 1))  # [t, bucket]
    return (node < 0) | (is_node & columns)


def causal_mask(positions: Tensor, bucket: int) -> Tensor:
    """Mask of a plain sequence whose token at position `p` sits in slot `p`.

    Args:
        positions: `[t]` long.
        bucket: number of slots.

    Returns:
        `[t, bucket]` bool: slot `s` is seen from position `p` when `s <= p`.
    """
    slots = torch.arange(bucket, device=positions.device)
    return slots <= positions.unsqueeze(1)
