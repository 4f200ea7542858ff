import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tree_builder import TreeTopology, expected_tokens, shapes, subtrees
from tree_builder.acceptance import AcceptanceTable

VECTOR = AcceptanceTable.from_rates([0.5, 0.2, 0.15, 0.1])
TABLE = AcceptanceTable.from_rows([[0.7], [0.3, 0.35], [0.3, 0.3, 0.2], [0.2, 0.2, 0.2, 0.2]])
BY_DEPTH = AcceptanceTable.from_rates([[0.2, 0.3, 0.1, 0.1], [0.7, 0.1, 0.1, 0.0]])


def prefixes(tree):
    """Every subtree that keeps first children only, by choosing a count for each kept node."""
    for counts in itertools.product(*[range(len(children) + 1) for children in tree.children]):
        parents, queue = [-1], [0]
        for new_id, node in enumerate(queue):
            kept = tree.children[node][: counts[node]]
            queue.extend(kept)
            parents.extend([new_id] * len(kept))
        yield TreeTopology(tuple(parents))


@st.composite
def small_trees(draw):
    size = draw(st.integers(1, 9))
    parents = [-1]
    for node in range(1, size):
        parents.append(draw(st.integers(max(parents[-1], 0), node - 1)))
    tree = TreeTopology(tuple(parents))
    return tree if tree.max_children <= 4 else shapes.from_branches([3, [2, 0, 1], 1])


@settings(deadline=None, max_examples=60)
@given(
    small_trees(), st.sampled_from([VECTOR, TABLE, BY_DEPTH]), st.integers(1, 9), st.integers(1, 5)
)
def test_best_subtree_agrees_with_brute_force(tree, table, size, max_levels):
    found = subtrees.best_subtree(tree, table, size, max_levels)
    allowed = [
        part for part in prefixes(tree) if part.size <= size and part.num_levels <= max_levels
    ]
    assert found in allowed
    best = max(expected_tokens(part, table) for part in allowed)
    assert expected_tokens(found, table) == pytest.approx(best, abs=1e-12)


def test_subtrees_by_levels_are_the_truncations():
    tree = shapes.kary(2, 4)
    assert [part.size for part in subtrees.subtrees_by_levels(tree)] == [1, 3, 7, 15]
    assert subtrees.subtrees_by_levels(shapes.chain(1)) == (shapes.chain(1),)


def test_limits():
    tree = shapes.kary(2, 4)
    assert subtrees.best_subtree(tree, VECTOR, 100) == tree
    assert subtrees.best_subtree(tree, VECTOR, 1) == shapes.chain(1)
    with pytest.raises(ValueError, match="at least 1"):
        subtrees.best_subtree(tree, VECTOR, 0)
    with pytest.raises(ValueError, match="at least 1"):
        subtrees.best_subtree(tree, VECTOR, 3, max_levels=0)
    with pytest.raises(ValueError, match="5 children"):
        subtrees.best_subtree(shapes.kary(5, 2), VECTOR, 3)
