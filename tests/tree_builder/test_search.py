import functools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tree_builder import TreeTopology, best_tree, best_trees, expected_tokens, growth, shapes
from tree_builder.acceptance import AcceptanceTable
from tree_builder.search import best_trees_by_levels, node_values

# Appendix E of Sequoia: Llama3-70B-Instruct with 8B-Instruct on CNN. Not monotone in the tail.
APPENDIX_E = [
    *(0.7732, 0.1039, 0.0402, 0.0206, 0.0128, 0.0081, 0.0064, 0.0043, 0.0035, 0.0026, 0.0025),
    *(0.0021, 0.0016, 0.0014, 0.0010, 0.0010, 0.0010, 0.0007, 0.0007, 0.0006, 0.0007, 0.0006),
    *(0.0004, 0.0004, 0.0005, 0.0006, 0.0004, 0.0003, 0.0002, 0.0004, 0.0001),
]
MONOTONE = sorted(APPENDIX_E, reverse=True)
K_SEQ = AcceptanceTable.from_rows(
    [[0.70], [0.62, 0.16], [0.55, 0.17, 0.10], [0.30, 0.20, 0.15, 0.12]]
)


@functools.cache
def all_trees(size):
    """Every ordered tree of `size` nodes (Catalan many), as breadth-first topologies."""

    def extend(parents):
        if len(parents) == size:
            yield TreeTopology(tuple(parents))
            return
        for parent in range(max(parents[-1], 0), len(parents)):
            yield from extend([*parents, parent])

    return list(extend([-1]))


def brute_force(table, size, max_levels):
    """The most expected tokens of any tree of at most `size` nodes."""
    return max(
        expected_tokens(tree, table)
        for nodes in range(1, size + 1)
        for tree in all_trees(nodes)
        if tree.max_children <= table.max_children and tree.num_levels <= max_levels
    )


@st.composite
def tables(draw, max_children=7, max_depths=3):
    """Vectors (monotone or not) and tables A[b][j], with zeros, alike or different by depth."""
    width = draw(st.integers(1, max_children))
    numbers = st.lists(st.integers(0, 10), min_size=width, max_size=width)

    def row():
        weights = np.array(draw(numbers), dtype=float)
        return weights / (weights.sum() + draw(st.integers(1, 5)))

    num_depths = draw(st.integers(1, max_depths))
    kind = draw(st.sampled_from(["vector", "monotone", "table"]))
    if kind == "table":
        depths = [[row()[:b] for b in range(1, width + 1)] for _ in range(num_depths)]
        return AcceptanceTable.from_depths(depths)
    rows = [row() for _ in range(num_depths)]
    return AcceptanceTable.from_rates(
        [sorted(r, reverse=True) for r in rows] if kind == "monotone" else rows
    )


def test_number_of_trees():
    assert [len(all_trees(size)) for size in range(1, 9)] == [1, 1, 2, 5, 14, 42, 132, 429]


@settings(deadline=None, max_examples=60)
@given(tables(), st.integers(1, 6), st.sampled_from([1, 2, 3, None]))
def test_search_agrees_with_brute_force(table, size, max_levels):
    tree, expected = best_tree(table, size, max_levels)
    assert expected == pytest.approx(brute_force(table, size, max_levels or size), abs=1e-12)
    assert expected_tokens(tree, table) == pytest.approx(expected, abs=1e-12)
    assert tree.size <= size
    assert tree.num_levels <= (max_levels or size)


@pytest.mark.parametrize("max_levels", [2, 3, 4, None])
@pytest.mark.parametrize(
    "table",
    [
        AcceptanceTable.from_rates([0.6, 0.25, 0.1]),
        AcceptanceTable.from_rates([0.2, 0.5, 0.05, 0.2]),
        AcceptanceTable.from_rates([[0.9, 0.05], [0.4, 0.35], [0.8, 0.1]]),
        K_SEQ,
        AcceptanceTable.from_depths([[[0.9], [0.5, 0.45]], [[0.3], [0.4, 0.4]]]),
    ],
    ids=["monotone", "not monotone", "by depth", "table", "table by depth"],
)
def test_eight_nodes_agree_with_brute_force(table, max_levels):
    trees = best_trees(table, 8, max_levels)
    for size in range(1, 9):
        wanted = brute_force(table, size, max_levels or size)
        assert trees.expected[size] == pytest.approx(wanted, abs=1e-12)
        assert expected_tokens(trees.tree(size), table) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("size", "best", "of_chain"),
    [
        (4, 2.833, 2.833),
        (8, 3.846, 3.846),
        (16, 4.538, 4.337),
        (32, 5.220, 4.408),
        (64, 5.917, 4.409),
        (128, 6.607, 4.409),
        (256, 7.289, 4.409),
    ],
)
def test_reference_values(size, best, of_chain):
    for vector in ([0, *APPENDIX_E], [0, *APPENDIX_E, 1 - sum(APPENDIX_E)]):
        tree, expected = best_tree(vector, size)
        assert expected == pytest.approx(best, abs=5e-4)
        assert expected_tokens(tree, vector) == pytest.approx(best, abs=5e-4)
        assert expected_tokens(shapes.chain(size), vector) == pytest.approx(of_chain, abs=5e-4)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 40), st.integers(1, 9))
@settings(deadline=None)
def test_growth_and_programme_agree_on_vectors_that_do_not_increase(weights, size, max_levels):
    rates = np.array(sorted(weights, reverse=True)) / (sum(weights) + 7)
    grown = best_trees(AcceptanceTable.from_rates(rates), size, max_levels)
    rows = [rates[:b] for b in range(1, len(rates) + 1)]
    rows[0] = rates[:1] * (1 - 1e-13)  # no longer one vector: the programme has to solve it
    table = AcceptanceTable.from_rows(rows)
    assert table.vectors is None or size == 1 or len(rates) == 1
    programmed = best_trees(table, size, max_levels)
    assert programmed.expected == pytest.approx(grown.expected, abs=1e-9)


def test_a_vector_that_increases_is_not_grown():
    assert growth.can_grow(np.array([[0.6, 0.2, 0.2], [0.5, 0.5, 0.0]]))
    assert not growth.can_grow(np.array([[0.6, 0.2, 0.2], [0.4, 0.5, 0.0]]))
    assert not growth.can_grow(np.array([[1.0005]]))
    assert not growth.can_grow(None)


@pytest.mark.parametrize("table", [AcceptanceTable.from_rates(APPENDIX_E), K_SEQ])
def test_all_sizes_at_once_are_the_single_searches(table):
    trees = best_trees(table, 40, 6)
    for size in (1, 2, 3, 10, 25, 40):
        tree, expected = best_tree(table, size, 6)
        assert trees.expected[size] == pytest.approx(expected, abs=1e-12)
        assert trees.tree(size).size == tree.size
    assert (np.diff(trees.expected) >= 0).all()


@pytest.mark.parametrize("size", [1, 4, 12])
@pytest.mark.parametrize(
    "table", [AcceptanceTable.from_rates(MONOTONE), AcceptanceTable.from_rates(APPENDIX_E), K_SEQ]
)
def test_all_level_limits_at_once_are_the_single_searches(table, size):
    for levels, trees in enumerate(best_trees_by_levels(table, size, 8), start=1):
        assert trees.expected == pytest.approx(best_trees(table, size, levels).expected, abs=1e-12)
        assert trees.tree(size).num_levels <= levels
        assert expected_tokens(trees.tree(size), table) == pytest.approx(trees.expected[size])


def test_one_node_or_one_level_drafts_nothing():
    for table in (AcceptanceTable.from_rates([0.6]), K_SEQ):
        assert best_tree(table, 1) == (shapes.chain(1), 1.0)
        assert best_tree(table, 9, max_levels=1) == (shapes.chain(1), 1.0)
        assert expected_tokens(shapes.chain(1), table) == 1.0


@pytest.mark.parametrize("rates", [[0.0, 0.0], [0.5, 0.0]])
def test_nodes_that_add_nothing_are_left_out(rates):
    rows = [rates[:1], [rates[0] / 2, rates[0] / 4]]
    for table in (AcceptanceTable.from_rates(rates), AcceptanceTable.from_rows(rows)):
        tree, _ = best_tree(table, 6, max_levels=3)
        assert (node_values(tree, table) > 0).all()


def test_a_second_child_only_where_the_table_pays_for_it():
    # alone a child is accepted more often than one of two together
    table = AcceptanceTable.from_rows([[0.9], [0.3, 0.3]])
    assert best_tree(table, 6)[0] == shapes.chain(6)
    assert best_tree(table, 3, max_levels=2)[0] == shapes.chain(2)


def test_levels_by_depth_are_honoured():
    table = AcceptanceTable.from_rates([[0.4, 0.35], [0.9, 0.01]])
    tree, expected = best_tree(table, 5, max_levels=3)
    assert tree == shapes.independent_chains(2, 2)
    assert expected == pytest.approx(1 + 0.75 + 0.75 * 0.9)


def test_bad_limits():
    for size, levels in ((0, None), (-3, 2), (4, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            best_tree([0, 0.5], size, levels)
    with pytest.raises(ValueError, match=r"in 1\.\.4"):
        best_trees([0, 0.5], 4).tree(5)
    with pytest.raises(ValueError, match="33 children"):
        expected_tokens(shapes.independent_chains(33, 1), [0, *APPENDIX_E])
    with pytest.raises(ValueError, match="starts with 0"):
        best_tree(APPENDIX_E, 4)


def best_time(search, repeats):
    """Seconds of this process alone, so that a busy machine does not fail the test."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        search()
        times.append(time.process_time() - start)
    return min(times)


def test_search_times_at_768_nodes_24_levels():
    vector = [0, *MONOTONE, 0.0001]
    assert len(vector) == 33
    assert best_time(lambda: best_tree(vector, 768, 24), 20) < 0.010
    rows = [[0.7 / (j + b) for j in range(1, b + 1)] for b in range(1, 9)]
    assert best_time(lambda: best_tree(AcceptanceTable.from_rows(rows), 768, 24), 1) < 10
