"""Every rule under every walker it has, and both forms of the walk: the exact law."""

import mutants
import pytest
import torch

import verifiers
from tree_builder import TreeTopology
from verifiers.check_cases import CHAIN, WIDE, Case, random_toy
from verifiers.k_hub import KHub
from verifiers.k_seq import KSeq
from verifiers.rrs import Rrs
from verifiers.rrs_wor import RrsWor
from verifiers.spechub import SpecHub
from verifiers.target_match import TargetMatch
from verifiers.walkers import Step, TokenLevel, Traversal


@pytest.mark.parametrize("name", verifiers.NAMES)
def test_law(name):
    report = verifiers.check_lossless(verifiers.make(name))
    assert report.ok, str(report)
    assert report.largest_error < 1e-12
    assert report.cases >= 35


@pytest.mark.parametrize("rule", [KSeq, TargetMatch])
def test_rules_that_gain_nothing_from_traversal_are_exact_under_it(rule):
    report = verifiers.check_lossless(Traversal(rule()), cases=small_cases())
    assert report.ok, str(report)


class Batched:
    """A walker held to its batched form."""

    def __init__(self, walker):
        self.walker = walker
        self.name, self.max_children = walker.name, walker.max_children
        self.propose = walker.propose

    def verify(self, *arguments):
        return self.walker.batched(Step(*arguments))


def small_cases():
    trees = [WIDE[2], TreeTopology((-1, 0, 1)), TreeTopology((-1, 0, 0, 1))]
    return [
        Case(f"small {index} {root}", (tree, CHAIN), random_toy(3, root, 7 + index))
        for index, tree in enumerate(trees)
        for root in ("flat", "peaked", "two-token q")
    ]


@pytest.mark.parametrize("name", [name for name in verifiers.NAMES if name != "greedy"])
def test_law_of_the_batched_form(name):
    report = verifiers.check_lossless(Batched(verifiers.make(name)), cases=small_cases())
    assert report.ok, str(report)


def likeliest_first(depth, contexts):
    """Expand only the node whose token is smallest, and give it as many children as its depth."""
    if depth == 0:
        return [2]
    best = min(range(len(contexts)), key=lambda node: contexts[node][::-1])
    return [2 if node == best and depth < 2 else 0 for node in range(len(contexts))]


@pytest.mark.parametrize("name", ["rrs_wor", "spechub", "rrs/traversal", "target_match"])
def test_law_with_adaptive_growth(name):
    """Which drawn nodes are expanded may depend on everything drawn so far."""
    cases = small_cases()[:3]
    report = verifiers.check_lossless(verifiers.make(name), policy=likeliest_first, cases=cases)
    assert report.ok, str(report)


# name of the mutant -> a verifier with that fault
MUTANTS = {
    "sorted draw": TokenLevel(mutants.SortedDraw()),
    "swapped hub draw": TokenLevel(mutants.SwappedHubDraw()),
    "merged siblings": TokenLevel(mutants.MergedSiblings()),
    "skipped duplicate": TokenLevel(mutants.SkippedDuplicate()),
    "residual not renormalised": TokenLevel(mutants.NotRenormalised()),
    "bonus from the target": TokenLevel(mutants.BonusFromTarget()),
    "full draft in the test": TokenLevel(mutants.FullDraftInTest()),
    "exhausted in index order": TokenLevel(mutants.ExhaustedInIndexOrder()),
    "draw of rrs, accept of rrs_wor": TokenLevel(mutants.IndependentDraw()),
    "draw of rrs_wor, accept of rrs": TokenLevel(mutants.WithoutReplacementDraw()),
    "top-k draw, accept of rrs": TokenLevel(mutants.TopDraw()),
    "hub recomputed": TokenLevel(mutants.RecomputedHub()),
    "hub pair in draw order": TokenLevel(mutants.FirstDrawnFirst()),
    "hub tested twice": TokenLevel(mutants.HubTestedTwice()),
    "independent coins": TokenLevel(mutants.IndependentCoins()),
    "k_seq with g = 1": TokenLevel(mutants.GreedySequence()),
    "hub by division": TokenLevel(mutants.HubByDivision()),
    "reused uniform": mutants.ReusedUniform(Rrs()),
    "shared coin": mutants.SharedCoin(Rrs()),
    "drawn coin": mutants.DrawnCoin(Rrs()),
    "uniforms kept between steps": mutants.KeptUniforms(Rrs()),
    "own randomness": mutants.OwnRandomness(Rrs()),
    "fp16 noise": mutants.HalfNoise(RrsWor()),
    "wrong parent row": mutants.WrongParentRow(RrsWor()),
    "cousin's draft row": mutants.CousinRow(RrsWor()),
    "stops with its budget": mutants.StopWithBudget(RrsWor()),
    "unconditional budgets, rrs": mutants.UnconditionalBudgets(Rrs()),
    "unconditional budgets, k_hub": mutants.UnconditionalBudgets(KHub()),
    "unconditional budgets, spechub": mutants.UnconditionalBudgets(SpecHub()),
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_kills(fault):
    torch.manual_seed(0)  # for the mutant that draws for itself
    report = verifiers.check_lossless(MUTANTS[fault])
    assert not report.ok, f"{fault} passed: {report}"
    assert fault in EXPECTED_MESSAGE or report.failures[0].token is not None, str(report)
    assert EXPECTED_MESSAGE.get(fault, "") in str(report.failures[0])


EXPECTED_MESSAGE = {
    "own randomness": "makes its own randomness",
    "fp16 noise": "changes a uniform before using it",
}
