"""The regular shapes of a budget of nodes, to compare the best tree with."""

from __future__ import annotations

from collections.abc import Iterator

from tree_builder.acceptance import Acceptance, AcceptanceTable, as_table
from tree_builder.search import best_tree, expected_tokens
from tree_builder.shapes import chain, independent_chains, kary
from tree_builder.topology import TreeTopology

FAMILIES = ("best tree", "k-ary", "chain", "independent chains")


def best_of_families(
    acceptance: Acceptance, size: int, max_levels: int | None = None
) -> dict[str, tuple[TreeTopology, float]]:
    """The best tree of at most `size` nodes of every family, with its expected tokens per step.

    `k-ary` are complete trees of two children and more, `independent chains` at least two chains
    of equal length; where none fits, or the table knows one child only, they are the root alone.
    ValueError for limits below 1.
    """
    table = as_table(acceptance)
    levels = size if max_levels is None else max_levels
    best = best_tree(table, size, max_levels)
    return {
        "best tree": best,
        "k-ary": _best(table, _karies(table.max_children, size, levels)),
        "chain": _best(table, iter([chain(min(size, levels))])),
        "independent chains": _best(table, _chains(table.max_children, size, levels)),
    }


def _best(table: AcceptanceTable, trees: Iterator[TreeTopology]) -> tuple[TreeTopology, float]:
    valued = [(tree, expected_tokens(tree, table)) for tree in [chain(1), *trees]]
    return max(valued, key=lambda pair: (pair[1], -pair[0].size))


def _karies(max_children: int, size: int, max_levels: int) -> Iterator[TreeTopology]:
    """The deepest complete tree that fits, for every number of children."""
    for num_children in range(2, min(max_children, size - 1) + 1):
        nodes, width, levels = 1, num_children, 1
        while nodes + width <= size and levels < max_levels:
            nodes, width, levels = nodes + width, width * num_children, levels + 1
        yield kary(num_children, levels)


def _chains(max_children: int, size: int, max_levels: int) -> Iterator[TreeTopology]:
    """The longest chains that fit, for every number of chains."""
    for width in range(2, min(max_children, size - 1) + 1):
        depth = min((size - 1) // width, max_levels - 1)
        if depth >= 1:
            yield independent_chains(width, depth)
