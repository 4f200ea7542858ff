"""The shape of a token tree: one parents array, everything else derived from it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor


class TreeTensors(NamedTuple):
    """A tree as tensors on one device: what the drafting step and the verifiers index with.

    m nodes, E rows (one per inner node), K = most children of any node. A tree of one node
    (no drafting) has E = K = 0. A child is never node 0, so 0 marks an empty child slot.
    """

    parents: Tensor  # [m] long; the root's is stored as 0
    depth: Tensor  # [m] long
    rows: Tensor  # [E] long, node of each row
    row_of: Tensor  # [m] long, row of an inner node, -1 for a leaf
    children: Tensor  # [E, K] long, node in child slot j, 0 where there is none
    mask: Tensor  # [m, m] bool, True = column is an ancestor of the row or the row itself
    num_levels: int


@dataclass(frozen=True)
class TreeTopology:
    """A rooted tree numbered breadth-first: levels are contiguous, siblings consecutive.

    `parents[i]` is the parent of node i and `parents[0] == -1`. Breadth-first numbering means
    exactly that `parents` never decreases. Two topologies are equal when their parents are.

    Raises ValueError naming the first node that breaks the numbering
    (`from_parents` takes any numbering and renumbers).
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        parents = tuple(_as_int(parent, node) for node, parent in enumerate(self.parents))
        object.__setattr__(self, "parents", parents)
        if not parents:
            raise ValueError("a tree has at least one node, the root: parents is empty")
        if parents[0] != -1:
            raise ValueError(f"node 0 is the root, its parent must be -1, got {parents[0]}")
        for node in range(1, len(parents)):
            parent = parents[node]
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: must be in 0..{node - 1}")
            if parent < parents[node - 1]:
                raise ValueError(
                    f"node {node} has parent {parent}, after node {node - 1} with parent "
                    f"{parents[node - 1]}: number the nodes breadth-first, or use from_parents"
                )

    @classmethod
    def from_parents(cls, parents: Sequence[int]) -> TreeTopology:
        """Renumber a tree given in any order; siblings keep the order of their ids.

        The root is the one node whose parent is -1. ValueError on several roots, no root,
        an unknown parent or a cycle, naming the node.
        """
        parents = [_as_int(parent, node) for node, parent in enumerate(parents)]
        children: list[list[int]] = [[] for _ in parents]
        root = None
        for node, parent in enumerate(parents):
            if parent == -1:
                if root is not None:
                    raise ValueError(f"nodes {root} and {node} both have parent -1: one root only")
                root = node
            elif 0 <= parent < len(parents):
                children[parent].append(node)
            else:
                raise ValueError(f"node {node} has parent {parent}: no such node")
        if root is None:
            raise ValueError("no root: exactly one node has parent -1")
        order, new_parents = [root], [-1]
        for new_id, node in enumerate(order):  # grows while it is read: a queue
            order.extend(children[node])
            new_parents.extend([new_id] * len(children[node]))
        if len(order) < len(parents):
            lost = min(set(range(len(parents))) - set(order))
            raise ValueError(f"node {lost} is not connected to the root: its ancestors are a cycle")
        return cls(tuple(new_parents))

    @classmethod
    def from_growmap(cls, growmap: Mapping[str, Any]) -> TreeTopology:
        """Tree of a Sequoia growmap (six keys, tensors or lists), its views checked against
        each other. ValueError says which view is wrong and where."""
        from tree_builder.views import parents_of_growmap

        return cls(parents_of_growmap(growmap))

    def to_growmap(self) -> dict[str, Any]:
        """The six keys of a Sequoia growmap; `mask` and `depth` are long tensors."""
        from tree_builder.views import growmap_views

        return growmap_views(self)

    def truncate(self, num_levels: int) -> TreeTopology:
        """The first `num_levels` levels (root included); the tree itself when it has no more.

        Node ids are kept, so anything indexed by node is simply cut. ValueError below 1."""
        if num_levels < 1:
            raise ValueError(f"num_levels must be at least 1 (the root), got {num_levels}")
        if num_levels >= self.num_levels:
            return self
        return TreeTopology(self.parents[: self.levels[num_levels][0]])

    @property
    def size(self) -> int:
        """Number of nodes m, root included: m - 1 tokens are drafted."""
        return len(self.parents)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Depth of every node, 0 for the root."""
        depth = [0]
        for parent in self.parents[1:]:
            depth.append(depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Child ids of every node, in the order in which they are drawn."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, self.size):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Node ids of every depth, leaves included."""
        levels: list[list[int]] = []
        for node, depth in enumerate(self.depth):
            if depth == len(levels):
                levels.append([])
            levels[depth].append(node)
        return tuple(map(tuple, levels))

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """Nodes that have children, ascending."""
        return tuple(node for node in range(self.size) if self.children[node])

    @property
    def num_rows(self) -> int:
        """Number of inner nodes E."""
        return len(self.inner)

    @property
    def num_levels(self) -> int:
        """Largest depth + 1."""
        return self.depth[-1] + 1

    @cached_property
    def max_children(self) -> int:
        """Most children of any node; 0 for a tree of one node."""
        return max(map(len, self.children))

    @cached_property
    def ancestor_mask(self) -> Tensor:
        """[m, m] bool on the CPU; row i is True at i and at every ancestor of i."""
        mask = torch.eye(self.size, dtype=torch.bool)
        for node in range(1, self.size):
            mask[node] |= mask[self.parents[node]]
        return mask

    def tensors(self, device: torch.device | str) -> TreeTensors:
        """The tree on `device`, made once per device (call it outside a captured step)."""
        device = torch.device(device)
        if device not in self._tensors:
            self._tensors[device] = self._make_tensors(device)
        return self._tensors[device]

    @cached_property
    def _tensors(self) -> dict[torch.device, TreeTensors]:
        return {}

    def _make_tensors(self, device: torch.device) -> TreeTensors:
        row_of = [-1] * self.size
        for row, node in enumerate(self.inner):
            row_of[node] = row
        width = self.max_children
        children = [
            list(self.children[node]) + [0] * (width - len(self.children[node]))
            for node in self.inner
        ]

        def long(values: Sequence) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        return TreeTensors(
            parents=long([0, *self.parents[1:]]),
            depth=long(self.depth),
            rows=long(self.inner),
            row_of=long(row_of),
            children=long(children).reshape(len(self.inner), width),
            mask=self.ancestor_mask.to(device),
            num_levels=self.num_levels,
        )


def _as_int(value: Any, node: int) -> int:
    """Plain int from any integer type; a float or a string is not a parent."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"node {node} has parent {value!r}: not an integer") from None
