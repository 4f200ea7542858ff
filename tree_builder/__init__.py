"""Token trees: shapes, files, search. Knows trees only: no probabilities, slots or masks."""

from tree_builder.acceptance import AcceptanceTable
from tree_builder.growmap import load_tree, read_tree, save_tree
from tree_builder.latency import LatencyCurve, LatencyCurves
from tree_builder.search import best_tree, best_trees, expected_tokens
from tree_builder.topology import TreeTensors, TreeTopology

__all__ = [
    "AcceptanceTable",
    "LatencyCurve",
    "LatencyCurves",
    "TreeTensors",
    "TreeTopology",
    "best_tree",
    "best_trees",
    "expected_tokens",
    "load_tree",
    "read_tree",
    "save_tree",
]
