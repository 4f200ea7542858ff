"""Best-first growth: the best trees of all sizes at once, for acceptance that never increases."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def can_grow(vectors: np.ndarray | None) -> bool:
    """Whether best-first growth is exact for [D, W] vectors (None: the table is no vector).

    It is when a child never has a higher value than its parent (entries at most 1), nor than
    its elder sibling (rows that do not increase): then the m most valuable nodes form a tree.
    """
    if vectors is None:
        return False
    return bool((vectors <= 1).all() and (vectors[:, 1:] <= vectors[:, :-1]).all())


def grow_best_first(
    rates: Sequence[Sequence[float]], size: int, max_levels: int
) -> tuple[list[int], list[float]]:
    """Parents and values of up to `size` nodes in the order of falling value, O(N log N).

    rates[d][j] is the acceptance of child j of a node at depth d (the last row serves deeper
    nodes too). The first m nodes are the best tree of m nodes within `max_levels`, for every
    m; parents come before children and elder siblings before younger, though not breadth-first.
    Nodes of value 0 are left out. Equal values: the shallower node first.
    """
    deepest = len(rates) - 1
    parents: list[int] = []
    values: list[float] = []
    heap = [(-1.0, 0, -1, 0)]  # -value, depth, parent, slot among its siblings
    while heap and len(parents) < size:
        value, depth, parent, slot = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        values.append(-value)
        if parent >= 0:
            row = rates[min(depth - 1, deepest)]
            if slot + 1 < len(row) and row[slot + 1] > 0:
                younger = -values[parent] * row[slot + 1]
                heapq.heappush(heap, (younger, depth, parent, slot + 1))
        first = rates[min(depth, deepest)][0]
        if depth + 1 < max_levels and first > 0:
            heapq.heappush(heap, (value * first, depth + 1, node, 0))
    return parents, values
