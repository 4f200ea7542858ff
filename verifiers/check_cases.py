"""Toy models and trees for :func:`verifiers.check_lossless`: small, but with every awkward row."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tree_builder.topology import TreeTopology

from .probs import Rows, Sampling, make_rows

Context = tuple[int, ...]
"""Tokens emitted or drafted so far; rows are functions of it."""

Policy = Callable[[int, tuple[Context, ...]], Sequence[int]]
"""(depth, contexts of the nodes of that level) -> number of children of each."""

Pair = tuple[list[float], list[float]]
"""Logits of a target and a draft row, -inf where filtered."""

NONE = -math.inf


@dataclass(frozen=True)
class Toy:
    """A target and a draft: ``pair(context)`` gives their rows, always the same ones.

    Only the last ``memory`` tokens of a context are passed to ``pair``: enough to tell cousins
    apart, and few enough that the second step need not be enumerated for every text.
    """

    size: int  # of the vocabulary
    pair: Callable[[Context], Pair]
    greedy: bool = False  # rows as at T = 0
    memory: int = 2
    _rows: dict[Context, tuple[Rows, Rows]] = field(default_factory=dict, compare=False)

    def target_rows(self, contexts: Sequence[Context]) -> Rows:
        """[len(contexts), V], fp64."""
        return self._stack(contexts, 0)

    def draft_rows(self, contexts: Sequence[Context]) -> Rows:
        return self._stack(contexts, 1)

    def _stack(self, contexts: Sequence[Context], which: int) -> Rows:
        rows = [self._both(context)[which] for context in contexts]
        return Rows(torch.cat([row.logits for row in rows]), torch.cat([row.probs for row in rows]))

    def state(self, context: Context) -> Context:
        """What the rows after ``context`` depend on."""
        return context[-self.memory :]

    def _both(self, context: Context) -> tuple[Rows, Rows]:
        context = self.state(context)
        if context not in self._rows:
            target, draft = (self._row(logits) for logits in self.pair(context))
            self._rows[context] = (target, draft)
        return self._rows[context]

    def _row(self, logits: list[float]) -> Rows:
        raw: Tensor = torch.tensor([logits], dtype=torch.float64)
        return make_rows(raw, Sampling(torch.ones(()), greedy=self.greedy))


@dataclass(frozen=True)
class Case:
    """Two steps after an empty text: their trees, and the toy models. ``joint``: both steps in one
    world, at the price of a number of worlds that multiplies."""

    name: str
    trees: tuple[TreeTopology, TreeTopology]
    toy: Toy
    joint: bool = False


# ---------------------------------------------------------------- pairs of rows


def _logits(rng: random.Random, size: int, spread: float = 1.5) -> list[float]:
    return [rng.gauss(0, spread) for _ in range(size)]


def _only(logits: list[float], tokens: Sequence[int]) -> list[float]:
    return [value if token in tokens else NONE for token, value in enumerate(logits)]


def _flat(rng: random.Random, size: int) -> Pair:
    return _logits(rng, size), _logits(rng, size)


def _peaked(rng: random.Random, size: int) -> Pair:
    target = _logits(rng, size, 2.5)
    return target, [value + rng.gauss(0, 0.7) for value in target]


def _equal(rng: random.Random, size: int) -> Pair:
    target = _logits(rng, size)
    return target, list(target)


def _ties(rng: random.Random, size: int) -> Pair:
    return _logits(rng, size), [0.0] * (size - 2) + [1.0, 1.0]


def _one_hot_draft(rng: random.Random, size: int) -> Pair:
    target = _logits(rng, size)
    return target, _only(target, [rng.randrange(size)])


def _two_token_draft(rng: random.Random, size: int) -> Pair:
    return _logits(rng, size), _only(_logits(rng, size), rng.sample(range(size), 2))


def _one_hot_on_hub(rng: random.Random, size: int) -> Pair:
    draft = _logits(rng, size)
    return _only(draft, [draft.index(max(draft))]), draft


def _one_hot_off_hub(rng: random.Random, size: int) -> Pair:
    draft = _logits(rng, size)
    return _only(draft, [draft.index(sorted(draft)[-2])]), draft


def _one_hot_outside(rng: random.Random, size: int) -> Pair:
    token = rng.randrange(size)
    draft = _only(_logits(rng, size), [other for other in range(size) if other != token])
    return _only(draft, [token])[:token] + [0.0] + [NONE] * (size - token - 1), draft


def _filtered(rng: random.Random, size: int) -> Pair:
    keep = max(2, size - 1)
    return tuple(  # type: ignore[return-value]
        _only(_logits(rng, size), rng.sample(range(size), keep)) for _ in range(2)
    )


def _underflow(rng: random.Random, size: int) -> Pair:
    """Off the hub the draft's probabilities are 0 in floating point, but not its support."""
    hub = rng.randrange(size)
    draft = [0.0 if token == hub else -900.0 - rng.random() for token in range(size)]
    return _logits(rng, size), draft


PAIRS: dict[str, Callable[[random.Random, int], Pair]] = {
    "flat": _flat,
    "peaked": _peaked,
    "p equals q": _equal,
    "ties at the top of q": _ties,
    "one-hot q": _one_hot_draft,
    "two-token q": _two_token_draft,
    "one-hot p on the hub": _one_hot_on_hub,
    "one-hot p off the hub": _one_hot_off_hub,
    "one-hot p outside supp q": _one_hot_outside,
    "zeros on either side": _filtered,
    "q underflows off the hub": _underflow,
}


def random_toy(size: int, root: str, seed: int, greedy: bool = False) -> Toy:
    """Rows of kind ``root`` for the first token, of kinds drawn at random further on."""
    kinds = list(PAIRS)

    def pair(context: Context) -> Pair:
        rng = random.Random(f"{seed} {context}")
        return PAIRS[rng.choice(kinds) if context else root](rng, size)

    return Toy(size, pair, greedy)


# ---------------------------------------------------------------- trees

CHAIN = TreeTopology((-1, 0))
WIDE = {k: TreeTopology((-1,) + (0,) * k) for k in (1, 2, 3, 4)}
DEEP = {
    "chain of 2": TreeTopology((-1, 0, 1)),
    "chain of 3": TreeTopology((-1, 0, 1, 2)),
    "two chains": TreeTopology((-1, 0, 0, 1, 2)),
    "first child carries on": TreeTopology((-1, 0, 0, 1, 1)),
    "second child carries on": TreeTopology((-1, 0, 0, 2, 2)),
    "one deep branch": TreeTopology((-1, 0, 0, 1, 3)),
    "deep under the second": TreeTopology((-1, 0, 0, 2, 3)),
    "three then one": TreeTopology((-1, 0, 0, 0, 2)),
    "binary": TreeTopology((-1, 0, 0, 1, 1, 2, 2)),
    "uneven": TreeTopology((-1, 0, 0, 0, 1, 1, 2)),
}
LARGE = {"binary", "uneven"}  # thorough only


def standard_cases(most: int | None, *, greedy: bool = False, thorough: bool = False) -> list[Case]:
    """The cases of a default or a thorough run, without trees of more than ``most`` children."""
    cases: list[Case] = []

    def add(name: str, tree: TreeTopology, size: int, root: str, joint: bool = False) -> None:
        if most is None or tree.max_children <= most:
            toy = random_toy(size, root, len(cases), greedy)
            cases.append(Case(f"{name}, V = {size}, {root}", (tree, CHAIN), toy, joint))

    for root in PAIRS:
        add("two steps in one world", CHAIN, 3, root, joint=True)
    for root in ("flat", "one-hot q"):
        add("two steps in one world", WIDE[2], 3, root, joint=True)
    for root in PAIRS:
        add("2 children", WIDE[2], 4, root)
        add("3 children", WIDE[3], 3, root)
    add("2 children", WIDE[2], 6, "peaked")
    add("3 children", WIDE[3], 4, "two-token q")
    add("4 children", WIDE[4], 3, "peaked")
    add("4 children", WIDE[4], 5, "one-hot q")
    add("4 children", WIDE[4], 4, "two-token q")
    for name, tree in DEEP.items():
        if name not in LARGE or thorough:
            for root in PAIRS if thorough else ("flat", "peaked"):
                add(name, tree, 3, root)
    if thorough:
        for root in PAIRS:
            add("two steps in one world", WIDE[2], 4, root, joint=True)
            add("4 children", WIDE[4], 4, root)
            add("3 children", WIDE[3], 5, root)
    return cases
