import pytest

from tree_builder import best_tree, expected_tokens, load_tree
from tree_builder.families import FAMILIES, best_of_families

# The vector of Sequoia's Appendix E (shortened) and its reference values for chains.
VECTOR = [0, 0.7732, 0.1039, 0.0402, 0.0206, 0.0128, 0.0081]


def test_families_of_a_small_budget_by_hand():
    found = best_of_families(VECTOR, 7)
    assert list(found) == list(FAMILIES)
    assert found["best tree"] == best_tree(VECTOR, 7)
    assert found["chain"][0] == load_tree("chain:7")
    shapes = [load_tree(spec) for spec in ("kary:2^3", "kary:3^2", "kary:4^2", "kary:6^2")]
    assert found["k-ary"][1] == max(expected_tokens(tree, VECTOR) for tree in shapes)
    chains = [load_tree(spec) for spec in ("chains:2x3", "chains:3x2", "chains:6x1")]
    assert found["independent chains"][1] == max(expected_tokens(t, VECTOR) for t in chains)


@pytest.mark.parametrize(("size", "expected"), [(4, 2.833), (8, 3.846), (16, 4.337), (64, 4.409)])
def test_chains_have_the_published_values(size, expected):
    assert best_of_families(VECTOR, size)["chain"][1] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("max_levels", [None, 1, 3])
def test_limits_hold_and_nothing_beats_the_best_tree(size, max_levels):
    found = best_of_families(VECTOR, size, max_levels)
    best = found["best tree"][1]
    for tree, value in found.values():
        assert tree.size <= size
        assert max_levels is None or tree.num_levels <= max_levels
        assert value <= best + 1e-12
        assert value == pytest.approx(expected_tokens(tree, VECTOR))


def test_a_table_of_one_child_has_chains_only():
    found = best_of_families([0, 0.5], 8)
    assert found["k-ary"][0].size == found["independent chains"][0].size == 1
