"""Token trees: shapes, files, search. Knows trees only: no probabilities, slots or masks."""

from tree_builder.growmap import load_tree, read_tree, save_tree
from tree_builder.topology import TreeTensors, TreeTopology

__all__ = ["TreeTensors", "TreeTopology", "load_tree", "read_tree", "save_tree"]
