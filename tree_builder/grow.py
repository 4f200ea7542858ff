"""Growing a drafted tree, level by level.

The tree package knows shapes, not models: the draft's forward pass and the verifier (which owns
how children are drawn) are passed in. Nothing here reads a device value on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tree_builder.topology import TreeTensors, TreeTopology

DraftForward = Callable[[Tensor, Tensor, Tensor, Tensor], Any]
"""(token_ids [t], nodes [t], depth [t], ancestors [t, m] bool) -> the rows of these t nodes."""


class Grown(NamedTuple):
    """A drafted tree of ``m`` nodes, ``E`` of them with children (at most ``K`` each)."""

    tree: TreeTensors
    tokens: Tensor  # [m] long, tokens[0] is the root's
    drafted: Any  # the verifier's Drafted, [E, K]
    draft_rows: list[Any]  # the rows the children were drawn from, one entry per level


class Growth(Protocol):
    """How a tree is grown: a fixed topology, or one chosen while drafting."""

    size: int  # nodes, root included
    num_rows: int  # E, nodes that get children
    max_children: int  # K
    num_levels: int

    def grow(
        self,
        root_token: Tensor,
        root_rows: Any,
        forward: DraftForward,
        verifier: Any,
        uniforms: Tensor,
    ) -> Grown: ...


class _Level(NamedTuple):
    """Constants of one level of a topology: its inner nodes and their children."""

    start: int  # rows start..stop of the E rows belong to this level
    stop: int
    counts: tuple[int, ...]  # children of each inner node
    columns: Tensor  # [children] position of each child in the flattened [b, k] draw
    nodes: Tensor  # [b] the inner nodes
    depth: Tensor  # [b]
    ancestors: Tensor  # [b, m] bool


class StaticGrowth:
    """Grow a fixed topology. All index tensors live on ``device`` before the first step."""

    def __init__(self, topology: TreeTopology, device: torch.device | str) -> None:
        self.topology = topology
        self.size = topology.size
        self.num_rows = topology.num_rows
        self.max_children = topology.max_children
        self.num_levels = topology.num_levels
        self.tree = topology.tensors(device)
        self._levels = [self._level(level, device) for level in topology.levels[:-1]]

    def _level(self, level: tuple[int, ...], device: torch.device | str) -> _Level:
        tree = self.topology
        inner = [node for node in level if tree.children[node]]
        counts = tuple(len(tree.children[node]) for node in inner)
        widest = max(counts)
        columns = [row * widest + slot for row, count in enumerate(counts) for slot in range(count)]
        start = tree.inner.index(inner[0])
        nodes = torch.tensor(inner, device=device)
        return _Level(
            start=start,
            stop=start + len(inner),
            counts=counts,
            columns=torch.tensor(columns, device=device),
            nodes=nodes,
            depth=self.tree.depth[nodes],
            ancestors=self.tree.mask[nodes],
        )

    def grow(
        self,
        root_token: Tensor,
        root_rows: Any,
        forward: DraftForward,
        verifier: Any,
        uniforms: Tensor,
    ) -> Grown:
        """Draw every child of the tree.

        ``root_token`` [1] long; ``root_rows`` the draft's row of the root (one row);
        ``uniforms`` [E, K] fp64, one per row and child slot.
        """
        tokens, drafted, rows = [root_token], [], []
        for depth, level in enumerate(self._levels):
            if depth == 0:
                rows.append(root_rows)
            else:  # only nodes with children need a draft pass: leaves are never drawn from
                first = self.topology.levels[depth][0]
                rows.append(
                    forward(
                        tokens[-1][level.nodes - first], level.nodes, level.depth, level.ancestors
                    )
                )
            draws = uniforms[level.start : level.stop, : max(level.counts)]
            drafted.append(verifier.propose(rows[-1], level.counts, draws))
            tokens.append(drafted[-1].tokens.reshape(-1)[level.columns])
        return Grown(self.tree, torch.cat(tokens), join_drafted(drafted, self.max_children), rows)


def join_drafted(parts: list[Any], width: int) -> Any:
    """Stack per-level draws [b, k] into one [E, width]; the padding is not live."""
    if not parts:
        return None  # a tree of one node drafts nothing
    kind = type(parts[0])
    padded = [
        kind(
            pad(part.tokens, (0, width - part.tokens.shape[1])),
            pad(part.live, (0, width - part.live.shape[1])),
            part.hub,
        )
        for part in parts
    ]
    return kind(*(torch.cat(column) for column in zip(*padded, strict=True)))
