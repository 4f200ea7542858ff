"""Token trees: shapes, files, search. Knows trees only: no probabilities, slots or masks."""

from tree_builder.topology import TreeTensors, TreeTopology

__all__ = ["TreeTensors", "TreeTopology"]
