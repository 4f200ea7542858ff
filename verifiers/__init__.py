"""Verifiers: how the children of a tree node are drawn, and which of them are accepted.

``make(name)`` gives a verifier by name; :class:`Rule` is what a new one has to provide, one file
per rule. Every verifier but ``greedy`` (T = 0) is lossless: emitted tokens follow the target's law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .acceptance import acceptance
from .base import Drafted, Plan, Rule, Uniforms, Verdict, Verifier
from .check import check_lossless
from .draws import coin, inverse_cdf
from .greedy import Greedy
from .k_hub import KHub
from .k_seq import KSeq
from .optimum import optimum, regret
from .probs import DeferredRows, Rows, Sampling, make_rows
from .rrs import Rrs
from .rrs_wor import RrsWor
from .spechub import SpecHub
from .target_match import TargetMatch
from .walkers import TokenLevel, Traversal

if TYPE_CHECKING:
    from tree_builder.topology import TreeTopology

__sequoia__ = True  # tells this package from the unrelated PyPI project of the same name

RULES = {rule.name: rule for rule in (Greedy, TargetMatch, Rrs, RrsWor, KSeq, SpecHub, KHub)}
WALKERS = {"": TokenLevel, "traversal": Traversal}
# Traversal gains nothing under greedy and target_match.
NAMES = (*RULES, *(f"{name}/traversal" for name in ("rrs", "rrs_wor", "spechub", "k_hub")))


def make(name: str) -> Verifier:
    """The verifier called ``name``, one of :data:`NAMES`; ValueError lists them."""
    if name not in NAMES:
        raise ValueError(f"unknown verifier {name!r}; choose from {', '.join(NAMES)}")
    rule, _, walker = name.partition("/")
    return WALKERS[walker](RULES[rule]())


def check_tree(verifier: Verifier, tree: TreeTopology) -> None:
    """ValueError if a node of the tree has more children than the verifier can take."""
    most = verifier.max_children
    for node, children in enumerate(tree.children):
        if most is not None and len(children) > most:
            raise ValueError(
                f"node {node} has {len(children)} children, but {verifier.name} takes at most "
                f"{most}: choose another tree, or another verifier ({_alternatives()} take any "
                "number)"
            )


def _alternatives() -> str:
    return ", ".join(name for name in NAMES if RULES[name.partition("/")[0]].max_children is None)


__all__ = [
    "NAMES",
    "DeferredRows",
    "Drafted",
    "Plan",
    "Rows",
    "Rule",
    "Sampling",
    "TokenLevel",
    "Traversal",
    "Uniforms",
    "Verdict",
    "Verifier",
    "acceptance",
    "check_lossless",
    "check_tree",
    "coin",
    "inverse_cdf",
    "make",
    "make_rows",
    "optimum",
    "regret",
]
