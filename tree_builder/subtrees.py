"""Smaller trees inside a tree, for the steps near the end of a generation.

A subtree keeps the root and, of every node it keeps, the first children in draw order: so a
child's acceptance is the table's for the number of children that are left.
"""

from __future__ import annotations

import numpy as np

from tree_builder.acceptance import Acceptance, AcceptanceTable, as_table
from tree_builder.topology import TreeTopology


def subtrees_by_levels(tree: TreeTopology) -> tuple[TreeTopology, ...]:
    """The largest subtree of at most l levels for l = 1..num_levels, at index l - 1.

    Made once, before the loop. When r more tokens may be emitted the step takes the one of
    min(r, num_levels) levels: a path of l levels emits at most l tokens, the bonus included.
    """
    return tuple(tree.truncate(levels) for levels in range(1, tree.num_levels + 1))


def best_subtree(
    tree: TreeTopology, acceptance: Acceptance, size: int, max_levels: int | None = None
) -> TreeTopology:
    """The subtree of at most `size` nodes and `max_levels` levels with the most expected tokens.

    Exact, by a knapsack over the tree. ValueError for limits below 1, and where a node that may
    be kept has more children than the table knows.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 (the root), got {size}")
    if max_levels is not None:
        tree = tree.truncate(max_levels)
    size = min(size, tree.size)
    table = as_table(acceptance)
    best: list[np.ndarray] = [np.array([-np.inf, 1.0])] * tree.size  # [nodes] value, per subtree
    shares: list[list[list[int]]] = [[]] * tree.size  # [nodes] nodes of each kept child
    for node in reversed(tree.inner):
        best[node], shares[node] = _knapsack(tree, table, node, best, size)
    total = int(best[0].argmax())  # ties: the fewest nodes
    parents = [-1]
    queue = [(0, total)]
    for new_id, (node, num_nodes) in enumerate(queue):  # grows while it is read
        kept = shares[node][num_nodes] if num_nodes > 1 else []
        queue.extend(zip(tree.children[node], kept, strict=False))
        parents.extend([new_id] * len(kept))
    return TreeTopology(tuple(parents))


def _knapsack(
    tree: TreeTopology, table: AcceptanceTable, node: int, best: list[np.ndarray], size: int
) -> tuple[np.ndarray, list[list[int]]]:
    """Value of the best subtree below `node` by its exact number of nodes, and how many nodes
    each of its children gets there."""
    children = tree.children[node]
    limit = min(size, 1 + sum(len(best[child]) - 1 for child in children))
    values = np.full(limit + 1, -np.inf)
    values[1] = 1.0
    shares: list[list[int]] = [[] for _ in range(limit + 1)]
    for num_children in range(1, len(children) + 1):
        rates = table.at(tree.depth[node], num_children)
        forest, splits = np.array([0.0]), []
        for rate, child in zip(rates, children, strict=False):
            forest, split = _append(forest, rate, best[child], limit - 1)
            splits.append(split)
        for num_nodes in np.flatnonzero(1 + forest > values[1 : len(forest) + 1]) + 1:
            values[num_nodes] = 1 + forest[num_nodes - 1]
            shares[num_nodes] = _shares(splits, int(num_nodes) - 1)
    return values, shares


def _append(
    forest: np.ndarray, rate: float, child: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Best value of a forest and one more child by total nodes, and the child's share."""
    length = min(len(forest) + len(child) - 1, limit + 1)
    value = np.full(length, -np.inf)
    share = np.zeros(length, dtype=np.int64)
    for nodes in range(1, min(len(child), length)):
        part = forest[: length - nodes] + rate * child[nodes]
        better = part > value[nodes : nodes + len(part)]
        value[nodes : nodes + len(part)][better] = part[better]
        share[nodes : nodes + len(part)][better] = nodes
    return value, share


def _shares(splits: list[np.ndarray], num_nodes: int) -> list[int]:
    shares = []
    for split in reversed(splits):
        shares.append(int(split[num_nodes]))
        num_nodes -= shares[-1]
    return shares[::-1]
