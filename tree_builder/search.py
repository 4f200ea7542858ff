"""The best tree for an acceptance table and a budget of nodes.

The expected number of tokens per step (accepted tokens plus the bonus) is the sum over the
nodes of the product of the acceptance probabilities along the path, 1 for the root
(Sequoia, arXiv 2402.12374, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tree_builder import growth, programme
from tree_builder.acceptance import Acceptance, AcceptanceTable, as_table
from tree_builder.topology import TreeTopology


class BestTrees:
    """The best tree of every size up to a budget.

    `expected[m]` is the expected number of tokens per step of `tree(m)`, the best tree of at
    most m nodes, m = 1..size (`expected[0]` is 0). The tree has fewer nodes where more add nothing.
    """

    def __init__(
        self,
        expected: np.ndarray,
        best_size: np.ndarray,
        build: Callable[[int], TreeTopology],
    ) -> None:
        self.expected = expected  # [size + 1] float64, never decreasing
        self._best_size = best_size  # [size + 1] nodes of the best tree of at most m nodes
        self._build = build  # exact number of nodes -> TreeTopology

    @property
    def size(self) -> int:
        """The largest budget searched for."""
        return len(self.expected) - 1

    def tree(self, size: int) -> TreeTopology:
        """The best tree of at most `size` nodes."""
        if not 1 <= size <= self.size:
            raise ValueError(f"size must be in 1..{self.size}, got {size}")
        return self._build(int(self._best_size[size]))


def best_tree(
    acceptance: Acceptance, size: int, max_levels: int | None = None
) -> tuple[TreeTopology, float]:
    """The best tree of at most `size` nodes (root included), with its expected tokens per step.

    acceptance  a table, or a vector in Sequoia's convention `[0, P1, ..., PW, reject]`
    max_levels  levels at most, root included; None: no limit

    Exact. A vector that does not increase takes O(N log N), any other table O(levels B^2 N^2).
    ValueError for a size or max_levels below 1.
    """
    trees = best_trees(acceptance, size, max_levels)
    return trees.tree(size), float(trees.expected[size])


def best_trees(acceptance: Acceptance, size: int, max_levels: int | None = None) -> BestTrees:
    """The best trees of all sizes up to `size` in one search; arguments as for `best_tree`."""
    table = as_table(acceptance)
    levels = size if max_levels is None else max_levels
    _check_limits(size, levels)
    if size == 1 or growth.can_grow(table.vectors):
        return _grown(table.rates[:, -1, :], size, levels)
    return _programmed(programme.solve(table, size, levels), table, size)


def best_trees_by_levels(acceptance: Acceptance, size: int, max_levels: int) -> list[BestTrees]:
    """`best_trees` for every limit 1..max_levels (entry l-1 has at most l levels).

    The programme of a table that is the same at every depth solves all the limits at once.
    """
    table = as_table(acceptance)
    _check_limits(size, max_levels)
    limits = range(1, max_levels + 1)
    if size == 1 or table.num_depths > 1 or growth.can_grow(table.vectors):
        return [best_trees(table, size, limit) for limit in limits]
    if max_levels < size:
        layers = programme.solve(table, size, max_levels)
        return [_programmed(layers[-limit:], table, size) for limit in limits]
    tighter = best_trees_by_levels(table, size, size - 1)
    unlimited = best_trees(table, size)  # a tree of `size` nodes has at most `size` levels
    return tighter + [unlimited] * (max_levels - size + 1)


def node_values(tree: TreeTopology, acceptance: Acceptance) -> np.ndarray:
    """[m] probability that each node is accepted: the product along its path, 1 for the root.

    ValueError when a node has more children than the table knows."""
    table = as_table(acceptance)
    values = np.ones(tree.size)
    for node in tree.inner:
        children = tree.children[node]
        rates = table.at(tree.depth[node], len(children))
        values[children[0] : children[-1] + 1] = values[node] * rates
    return values


def expected_tokens(tree: TreeTopology, acceptance: Acceptance) -> float:
    """Expected tokens per step of a tree, the bonus included: 1.0 for a tree of one node."""
    return float(node_values(tree, acceptance).sum())


def _grown(rates: np.ndarray, size: int, max_levels: int) -> BestTrees:
    parents, values = growth.grow_best_first(rates.tolist(), size, max_levels)
    sizes = np.minimum(np.arange(size + 1), len(parents))
    expected = np.concatenate([[0.0], np.cumsum(values)])[sizes]
    return BestTrees(expected, sizes, lambda m: TreeTopology.from_parents(parents[:m]))


def _programmed(layers: list[programme.Layer], table: AcceptanceTable, size: int) -> BestTrees:
    exact = layers[0].best.copy()
    exact[0] = 0.0
    expected = np.maximum.accumulate(exact)
    sizes = np.maximum.accumulate(np.where(exact == expected, np.arange(size + 1), 0))
    sizes = np.searchsorted(expected, expected[sizes])  # the smallest tree of that value
    following = programme.make_slots(table, size).following
    return BestTrees(
        expected, sizes, lambda m: TreeTopology(tuple(programme.trace(layers, following, m)))
    )


def _check_limits(size: int, max_levels: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1 (the root), got {size}")
    if max_levels < 1:
        raise ValueError(f"max_levels must be at least 1 (the root), got {max_levels}")
