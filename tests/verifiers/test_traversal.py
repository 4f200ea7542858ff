"""What the sequence level gains: expected accepted tokens by enumeration, never fewer."""

import pytest

import verifiers
from tree_builder import TreeTopology
from verifiers.check_cases import random_toy
from verifiers.check_step import follow, step
from verifiers.enumeration import World
from verifiers.spechub_blind import SpecHubBlind
from verifiers.walkers import TokenLevel, Traversal

TREES = {
    "chain": TreeTopology((-1, 0, 1)),
    "balanced": TreeTopology((-1, 0, 0, 1, 2)),
    "uneven": TreeTopology((-1, 0, 0, 1, 1)),
}


def accepted(verifier, tree, root, seed):
    """Expected number of accepted tokens of one step, exact."""
    toy, start = random_toy(3, root, seed), World(1.0, {}, verifier)
    worlds = step(start, toy, (), follow(tree), 0)
    return sum(world.weight * (len(text) - 1) for world, text in worlds)


@pytest.mark.parametrize("name", ["rrs", "rrs_wor", "spechub", "k_hub"])
@pytest.mark.parametrize("tree", TREES)
def test_traversal_never_accepts_fewer(name, tree):
    gains = []
    for seed in range(3):
        by_token = accepted(verifiers.make(name), TREES[tree], "flat", seed)
        by_sequence = accepted(verifiers.make(f"{name}/traversal"), TREES[tree], "flat", seed)
        gains.append(by_sequence - by_token)
    assert min(gains) > -1e-12
    assert max(gains) > 1e-6


def test_order_blind_budgets_are_lossless():
    for walker in (Traversal(SpecHubBlind()), TokenLevel(SpecHubBlind())):
        report = verifiers.check_lossless(walker)
        assert report.ok, str(report)


def test_order_blind_budgets_are_at_least_as_good_in_a_balanced_tree():
    differences = [
        accepted(Traversal(SpecHubBlind()), TREES["balanced"], "flat", seed)
        - accepted(verifiers.make("spechub/traversal"), TREES["balanced"], "flat", seed)
        for seed in range(4)
    ]
    assert min(differences) > -1e-12
    assert max(differences) > 1e-6
