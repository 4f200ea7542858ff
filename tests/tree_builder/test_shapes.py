import pytest
from hypothesis import given
from hypothesis import strategies as st

from tree_builder import TreeTopology, shapes


def test_chain_counts_the_root():
    assert shapes.parse_spec("chain:5").parents == (-1, 0, 1, 2, 3)


def test_kary_counts_levels_with_the_root():
    tree = shapes.parse_spec("kary:2^3")
    assert tree.parents == (-1, 0, 0, 1, 1, 2, 2)
    assert tree.num_levels == 3


def test_independent_chains_count_drafted_tokens():
    tree = shapes.parse_spec("chains:4x2")
    assert tree.size == 9
    assert tree.children == ((1, 2, 3, 4), (5,), (6,), (7,), (8,), (), (), (), ())


@pytest.mark.parametrize("spec", ["chain:1", "kary:3^1"])
def test_a_spec_may_name_the_tree_without_drafting(spec):
    assert shapes.parse_spec(spec) == TreeTopology((-1,))


def test_unary_and_single_chains_are_chains():
    assert shapes.parse_spec("kary:1^4") == shapes.parse_spec("chains:1x3") == shapes.chain(4)


def test_branches_as_counts_or_lists():
    assert shapes.from_branches([2, 1]) == shapes.independent_chains(2, 2)
    tree = shapes.from_branches([[2], [2, 1], [1, 0, 0], [1], [0]])
    assert tree.parents == (-1, 0, 0, 1, 1, 2, 3, 6)
    assert shapes.from_branches([]).size == 1


@given(st.from_type(TreeTopology))
def test_branches_of_any_tree_give_it_back(tree):
    assert shapes.from_branches(tree.to_growmap()["branches"]) == tree


@pytest.mark.parametrize("branches", [[[1, 1]], [2, [1]], [-1], [2, [1, -1]]])
def test_bad_branches_name_the_level(branches):
    with pytest.raises(ValueError, match=f"level {len(branches) - 1}"):
        shapes.from_branches(branches)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "chain",
        "chain:",
        "chain:-1",
        "chain:2.5",
        "kary:2x3",
        "chains:4",
        "chains:4x8x2",
        "tree:5",
    ],
)
def test_bad_specs_show_the_forms(spec):
    with pytest.raises(ValueError, match="chains:4x8"):
        shapes.parse_spec(spec)


@pytest.mark.parametrize("spec", ["chain:0", "kary:0^3", "chains:3x0"])
def test_zero_in_a_spec_is_refused(spec):
    with pytest.raises(ValueError, match="at least 1"):
        shapes.parse_spec(spec)


@pytest.mark.parametrize("spec", ["chain:999999999", "kary:2^999999999", "chains:99999x99999"])
def test_huge_specs_are_refused_before_they_are_built(spec):
    with pytest.raises(ValueError, match="more than"):
        shapes.parse_spec(spec)
