"""Context-adaptive trees in the engine: legal forms are exact, illegal ones are refused."""

from __future__ import annotations

import pytest
import torch

import verifiers
from sequoia import AutoregressiveDecoder, SamplingParams, SpeculativeDecoder
from tree_builder.adaptive import AdaptiveTree, make_growth

SPECS = ["adaptive:2x3x4", "adaptive:3x2x5", "adaptive:1x4x4", "adaptive:4x4x4@9"]


@pytest.mark.parametrize("spec", SPECS)
def test_greedy_text_is_that_of_plain_decoding(spec, tiny_pair):
    pair = tiny_pair(97)
    params = SamplingParams(max_new_tokens=40, temperature=0)
    output = SpeculativeDecoder(pair, spec, "target_match").generate([3, 4], params)
    assert output.token_ids == AutoregressiveDecoder(pair).generate([3, 4], params).token_ids
    assert output.tree == spec
    assert sum(output.accepted_per_step) > 0


@pytest.mark.parametrize("spec", SPECS)
def test_the_tree_keeps_within_its_limits(spec, tiny_pair):
    limits = AdaptiveTree.parse(spec)
    shapes = set()

    def observe(record):
        tree, size = record.tree, record.tokens.shape[0]
        parents = tree.parents.tolist()
        assert all(parent < node for node, parent in enumerate(parents) if node)
        for node in range(1, size):
            expected = tree.mask[parents[node], :size].clone()
            expected[node] = True
            assert tree.mask[node, :size].equal(expected)
            assert tree.depth[node] == tree.depth[parents[node]] + 1
            row = tree.row_of[parents[node]]
            assert row >= 0
            assert (tree.children[row] == node).sum() == 1
        assert tree.depth.max() < limits.num_levels
        counts = [parents[1:].count(node) for node in range(size)]
        assert max(counts) <= limits.children
        shapes.add((size, tuple(parents)))

    decoder = SpeculativeDecoder(tiny_pair(97), spec, "target_match")
    decoder.generate([3], SamplingParams(max_new_tokens=60, seed=1), observer=observe)
    assert max(size for size, _ in shapes) == limits.size
    if limits.children > 1:
        assert len(shapes) > 3, "the shape never depended on what was drawn"


def test_pruning_by_probability_is_refused_for_sampled_rules(tiny_pair):
    with pytest.raises(ValueError, match=r"removes drawn children.*target_match.*not for rrs_wor"):
        SpeculativeDecoder(tiny_pair(97), "adaptive:4x4x4@9", "rrs_wor")
    SpeculativeDecoder(tiny_pair(97), "adaptive:4x4x4", "rrs_wor")


def test_too_many_children_for_the_rule_are_refused(tiny_pair):
    with pytest.raises(ValueError, match=r"adaptive:3x2x5 has 3 children.*at most 2"):
        SpeculativeDecoder(tiny_pair(97), "adaptive:3x2x5", "spechub")


@pytest.mark.parametrize(
    "spec",
    [
        "adaptive:2x3",
        "adaptive:0x1x2",
        "adaptive:2x2x2@0",
        "adaptive:",
        "adaptive:900x900x900",
        "adaptive:1x1x999999999",
    ],
)
def test_a_bad_spec_is_named(spec, tiny_pair):
    with pytest.raises(ValueError, match=spec):
        SpeculativeDecoder(tiny_pair(97), spec)


def test_sizes():
    tree = AdaptiveTree(children=2, width=3, num_levels=4)
    assert tree.expanded == (1, 2, 3)
    assert (tree.drawn, tree.size, tree.prunes) == (13, 13, False)
    assert AdaptiveTree(2, 3, 4, budget=7).size == 7
    assert AdaptiveTree(2, 3, 1).size == 1


@pytest.mark.parametrize("name", ["rrs_wor", "spechub", "target_match"])
def test_a_node_is_expanded_once_although_all_open_ones_have_q_0(name):
    """Drawing a node's children again, depending on what was drawn first, biased the text."""
    no = -torch.inf
    table = torch.tensor([[no, 0.5, 0.3, 0.9], [no, 0, no, no], [no, no, 0, no], [0.1, 0, 0.5, 1]])
    verifier = verifiers.make(name)
    growth = make_growth(AdaptiveTree(children=2, width=5, num_levels=4), "cpu")

    def forward(tokens, *_):
        return verifiers.make_rows(table[tokens], verifiers.Sampling(torch.tensor(1.0)))

    root = torch.tensor([0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        shape = growth.num_rows, growth.max_children
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64)
        tree = growth.grow(root, forward(root), forward, verifier, uniforms).tree
        assert len(tree.rows.unique()) == len(tree.rows)
        assert tree.parents[tree.children].equal(tree.rows[:, None].expand_as(tree.children))
