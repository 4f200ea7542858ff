import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tree_builder import TreeTopology

UNEVEN = (-1, 0, 0, 1, 1, 2, 3, 6)


def test_uneven_example_of_the_formats():
    tree = TreeTopology(UNEVEN)
    assert tree.size == 8
    assert tree.levels == ((0,), (1, 2), (3, 4, 5), (6,), (7,))
    assert tree.children == ((1, 2), (3, 4), (5,), (6,), (), (), (7,), ())
    assert tree.depth == (0, 1, 1, 2, 2, 2, 3, 4)
    assert tree.inner == (0, 1, 2, 3, 6)
    assert (tree.num_levels, tree.max_children) == (5, 2)
    assert tree.ancestor_mask[7].nonzero().flatten().tolist() == [0, 1, 3, 6, 7]


def test_tensors():
    tree = TreeTopology(UNEVEN)
    tensors = tree.tensors("cpu")
    assert tensors.parents.tolist() == [0, 0, 0, 1, 1, 2, 3, 6]
    assert tensors.rows.tolist() == [0, 1, 2, 3, 6]
    assert tensors.row_of.tolist() == [0, 1, 2, 3, -1, -1, 4, -1]
    assert tensors.children.tolist() == [[1, 2], [3, 4], [5, 0], [6, 0], [7, 0]]
    assert tensors.num_levels == 5
    assert tensors.mask.dtype == torch.bool
    assert tree.tensors(torch.device("cpu")) is tensors
    assert tree.tensors("meta").children.shape == (5, 2)


def test_a_tree_of_one_node_drafts_nothing():
    tree = TreeTopology([-1])
    tensors = tree.tensors("cpu")
    assert (tree.size, tree.num_levels, tree.max_children, tree.inner) == (1, 1, 0, ())
    assert tree.levels == ((0,),)
    assert tensors.children.shape == (0, 0)
    assert tensors.rows.shape == (0,)
    assert tensors.rows.dtype == torch.long
    assert tensors.mask.tolist() == [[True]]
    assert tree.truncate(1) is tree


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], "empty"),
        ([0], "node 0"),
        ([-1, 1], "node 1 has parent 1"),
        ([-1, 0, -1], "node 2 has parent -1"),
        ([-1, 0, 1, 0], "node 3 has parent 0, after node 2"),
        ([-1, 0.0], "node 1 has parent 0.0: not an integer"),
        ([-1, "0"], "node 1"),
    ],
)
def test_bad_parents_name_the_node(parents, message):
    with pytest.raises(ValueError, match=message):
        TreeTopology(parents)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([-1, -1], "nodes 0 and 1"),
        ([1, 0], "no root"),
        ([-1, 7], "node 1 has parent 7"),
        ([-1, 2, 1], "node 1 is not connected"),
    ],
)
def test_bad_arbitrary_parents_name_the_node(parents, message):
    with pytest.raises(ValueError, match=message):
        TreeTopology.from_parents(parents)


def test_from_parents_renumbers_and_keeps_sibling_order():
    # 3 is the root with children 0 and 4; 0 has child 1; 4 has child 2
    assert TreeTopology.from_parents([3, 0, 4, -1, 3]).parents == (-1, 0, 0, 1, 2)


@given(st.from_type(TreeTopology), st.randoms(use_true_random=False))
def test_renumbering_undoes_any_shuffle_that_keeps_siblings_in_order(tree, random):
    names = sorted(range(tree.size), key=lambda node: (random.random(), node))
    for children in tree.children:  # give siblings ascending new names
        for child, name in zip(children, sorted(names[c] for c in children), strict=True):
            names[child] = name
    parents = [0] * tree.size
    for node, parent in enumerate(tree.parents):
        parents[names[node]] = -1 if parent < 0 else names[parent]
    assert TreeTopology.from_parents(parents) == tree


@given(st.from_type(TreeTopology))
def test_views_agree(tree):
    assert [node for level in tree.levels for node in level] == list(range(tree.size))
    assert [c for children in tree.children for c in children] == list(range(1, tree.size))
    assert (tree.ancestor_mask.sum(1) - 1).tolist() == list(tree.depth)
    for node in range(1, tree.size):
        assert node in tree.children[tree.parents[node]]


@given(st.from_type(TreeTopology), st.integers(1, 8))
def test_truncate_keeps_the_first_levels(tree, levels):
    cut = tree.truncate(levels)
    assert cut.num_levels == min(levels, tree.num_levels)
    assert cut.levels == tree.levels[:levels]


def test_truncate_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        TreeTopology([-1, 0]).truncate(0)


def test_equal_trees_hash_alike_and_pickle():
    tree = TreeTopology(UNEVEN)
    tree.tensors("cpu")
    assert {tree, TreeTopology(list(UNEVEN))} == {tree}
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert "parents" in repr(tree)
