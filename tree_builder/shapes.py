"""Regular trees, and the short specs that name them (`chain:5`, `kary:2^3`, `chains:4x8`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tree_builder.topology import TreeTopology

MAX_SPEC_NODES = 8192  # a spec is a few characters: one mistyped digit must not fill the memory
SPECS = (
    "chain:5 (5 nodes in a row), kary:2^3 (3 levels, 2 children each), chains:4x8 (4 chains of 8)"
)


def chain(size: int) -> TreeTopology:
    """`size` nodes in a row, root included: size - 1 tokens are drafted."""
    _at_least(1, size=size)
    return TreeTopology(tuple(range(-1, size - 1)))


def kary(num_children: int, num_levels: int) -> TreeTopology:
    """Complete tree: `num_levels` levels, root included; every inner node has `num_children`."""
    _at_least(1, num_children=num_children, num_levels=num_levels)
    return from_branches([num_children] * (num_levels - 1))


def independent_chains(width: int, depth: int) -> TreeTopology:
    """`width` chains of `depth` drafted tokens sharing only the root: width * depth + 1 nodes."""
    _at_least(1, width=width, depth=depth)
    return from_branches([width] + [1] * (depth - 1))


def from_branches(branches: Sequence[int | Sequence[int]]) -> TreeTopology:
    """Tree from the number of children of the nodes of each level, the root's level first.

    An entry is one count for every node of the level or a list with one count per node; the
    level below the last entry is all leaves. ValueError names the level that does not fit.
    """
    parents, level = [-1], [0]
    for depth, counts in enumerate(branches):
        counts = [counts] * len(level) if isinstance(counts, int) else list(counts)
        if len(counts) != len(level) or any(count < 0 for count in counts):
            raise ValueError(
                f"branches of level {depth}: need {len(level)} counts of at least 0, got {counts}"
            )
        below = [node for node, count in zip(level, counts, strict=True) for _ in range(count)]
        level = list(range(len(parents), len(parents) + len(below)))
        parents.extend(below)
    return TreeTopology(tuple(parents))


def is_spec(text: str) -> bool:
    """Whether `text` is meant as a spec: it starts with the name of a shape and a colon."""
    return text.partition(":")[0] in ("chain", "kary", "chains") and ":" in text


def parse_spec(spec: str) -> TreeTopology:
    """Tree of a spec. ValueError shows the forms when it is none, or when the tree is huge."""
    match = re.fullmatch(
        r"(chain):(\d{1,9})|(kary):(\d{1,9})\^(\d{1,9})|(chains):(\d{1,9})x(\d{1,9})", spec
    )
    if match is None:
        raise ValueError(f"unknown tree spec {spec!r}; use {SPECS}")
    name, *text = [group for group in match.groups() if group is not None]
    numbers = [int(number) for number in text]
    if 0 in numbers:
        raise ValueError(f"tree spec {spec!r}: every number must be at least 1")
    if _spec_nodes(name, numbers) > MAX_SPEC_NODES:
        raise ValueError(f"tree spec {spec!r} has more than {MAX_SPEC_NODES} nodes")
    if name == "chain":
        return chain(numbers[0])
    return (kary if name == "kary" else independent_chains)(numbers[0], numbers[1])


def _spec_nodes(name: str, numbers: Sequence[int]) -> int:
    """Number of nodes, or any number above the limit where it is larger."""
    if name == "chain":
        return numbers[0]
    if name == "chains":
        return numbers[0] * numbers[1] + 1
    num_children, num_levels = numbers
    total, width = 1, 1
    for _ in range(num_levels - 1):
        width *= num_children
        total += width
        if total > MAX_SPEC_NODES:
            break
    return total


def _at_least(smallest: int, **values: int) -> None:
    for name, value in values.items():
        if value < smallest:
            raise ValueError(f"{name} must be at least {smallest}, got {value}")
