"""The exact dynamic programme behind `best_trees`, for any acceptance table.

F_d(n) is the most a subtree of exactly n nodes rooted at depth d can add, its root counted as 1.
Its children are chosen slot by slot. For a table A[b][j] there is one chain of slots for each
number of children b, for a vector a single chain that may end after any slot. With H_p(n) the
most that n nodes give as the child in slot p and its younger siblings,

    H_p(n) = max over s in 1..n of   a_p F_{d+1}(s) + R_p(n - s)
    R_p(n) = H_next(p)(n),  R_p(0) = 0 where the chain may end after p,  -inf where impossible
    F_d(n) = 1 + max over the first slots p of   H_p(n - 1)

which is the recurrence of Sequoia (arXiv 2402.12374, section 3.1 and appendix) with the number of
children made part of the state. All slots are handled at once for each n.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from tree_builder.acceptance import AcceptanceTable

TINY = 1e-300  # stands for acceptance 0, so that an impossible subtree (-inf) stays impossible


class Slots(NamedTuple):
    """P child slots; `rates[d]` belongs to children of nodes at depth d."""

    rates: np.ndarray  # [D, P]
    following: np.ndarray  # [P] next slot of the same chain, -1 at its end
    may_end: np.ndarray  # [P] bool
    first: np.ndarray  # [S] slots a chain begins with


class Layer(NamedTuple):
    """The solution for nodes of one depth, up to `size` nodes."""

    best: np.ndarray  # [size + 1] F(n), -inf where no such subtree exists
    first: np.ndarray  # [size + 1] first slot of the best subtree of n nodes
    split: np.ndarray  # [P, size + 1] nodes given to the child in slot p when n remain


def make_slots(table: AcceptanceTable, size: int) -> Slots:
    """Slots of a table; nodes of a tree of `size` nodes have at most size - 1 children."""
    width = min(table.max_children, size - 1)
    vectors = table.vectors
    if vectors is not None:
        slot = np.arange(width)
        following = np.where(slot + 1 < width, slot + 1, -1)
        return Slots(vectors[:, :width], following, np.ones(width, dtype=bool), slot[:1])
    rates, first = [], []
    links: list[int] = []
    for num_children in range(1, width + 1):
        first.append(len(links))
        rates.append(table.rates[:, num_children - 1, :num_children])
        links.extend(range(len(links) + 1, len(links) + num_children))
        links.append(-1)
    following = np.array(links)
    return Slots(np.concatenate(rates, axis=1), following, following < 0, np.array(first))


def solve(table: AcceptanceTable, size: int, max_levels: int) -> list[Layer]:
    """Layers by depth, root first. The last one serves every deeper node too.

    Where `max_levels` cannot bind (a tree of `size` nodes has at most `size` levels) depths
    beyond the table's are one layer that is its own child layer.
    """
    slots = make_slots(table, size)
    if max_levels < size:
        layers = [_leaves(size)]
        depths = range(max_levels - 2, -1, -1)
    else:
        layers = [_solve_layer(slots, table.num_depths - 1, size, None)]
        depths = range(table.num_depths - 2, -1, -1)
    for depth in depths:
        layers.append(_solve_layer(slots, min(depth, table.num_depths - 1), size, layers[-1]))
    return layers[::-1]


def trace(layers: list[Layer], following: np.ndarray, size: int) -> list[int]:
    """Breadth-first parents of the best tree of exactly `size` nodes."""
    parents = [-1]
    queue = deque([(0, size)])  # depth and number of nodes of the subtrees, in node order
    node = 0
    while queue:
        depth, num_nodes = queue.popleft()
        layer = layers[min(depth, len(layers) - 1)]
        slot, remaining = int(layer.first[num_nodes]), num_nodes - 1
        while remaining:
            taken = int(layer.split[slot, remaining])
            parents.append(node)
            queue.append((depth + 1, taken))
            slot, remaining = int(following[slot]), remaining - taken
        node += 1
    return parents


def _leaves(size: int) -> Layer:
    best = np.full(size + 1, -np.inf)
    best[1] = 1.0
    return Layer(best, np.zeros(size + 1, dtype=np.int32), np.zeros((0, size + 1), dtype=np.int32))


def _solve_layer(slots: Slots, depth: int, size: int, below: Layer | None) -> Layer:
    """One depth, given the layer below it; None: the layer is its own."""
    rates = np.maximum(slots.rates[depth], TINY)[:, None]  # [P, 1]
    layer = Layer(
        np.full(size + 1, -np.inf),
        np.zeros(size + 1, dtype=np.int32),
        np.zeros((len(rates), size + 1), dtype=np.int32),
    )
    layer.best[1] = 1.0
    child = layer.best if below is None else below.best
    # R_p(n) at column size - n: n - s runs backwards over a slice that runs forwards.
    rest = np.full((len(rates), size + 1), -np.inf)
    rest[slots.may_end, size] = 0.0
    buffer = np.empty((len(rates), size))
    every = np.arange(len(rates))
    goes_on = slots.following >= 0
    following = slots.following[goes_on]
    for n in range(1, size):
        candidates = np.multiply(rates, child[1 : n + 1], out=buffer[:, :n])
        candidates += rest[:, size - n + 1 :]
        taken = candidates.argmax(axis=1)
        value = candidates[every, taken]  # H_p(n)
        layer.split[:, n] = taken + 1
        rest[goes_on, size - n] = value[following]
        chosen = value[slots.first].argmax()
        layer.first[n + 1] = slots.first[chosen]
        layer.best[n + 1] = 1.0 + value[slots.first[chosen]]
    return layer
