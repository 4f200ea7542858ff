"""Exact enumeration of everything a step may do, by running it again and again.

Every uniform of a step carries a concrete value that is not used as a number but as a *label*: the
two primitives, :func:`draws.inverse_cdf` and :func:`draws.coin`, look it up and find the interval
of [0, 1) in which that uniform is known to lie in the present world. A coin with threshold c splits
the interval at c, an inverse CDF along the cumulative weights; each piece is a world of its own,
with its share of the probability. The rest of the code runs as it does in production.

So a uniform used twice is correlated with itself, exactly as it would be; one that the step did not
provide has no label and is an error; and a comparison that avoids the primitives sees a constant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .draws import deciding

GOLDEN = 0.6180339887498949  # fractional parts of its multiples are far apart, and odd in fp32
MIN_SHARE = 1e-14  # pieces of an interval below this are rounding, not worlds

Interval = tuple[float, float]


class UnknownUniform(Exception):
    """A random decision was made with a number that is none of the step's uniforms."""


def labels(count: int, first: int) -> Tensor:
    """``count`` distinct labels, fp64 in (0, 1); ranges of ``first`` must not overlap."""
    index = torch.arange(first + 1, first + 1 + count, dtype=torch.float64)
    return (index * GOLDEN) % 1.0


class World(NamedTuple):
    """One way things may have gone: its probability, what each uniform is known to be, and the
    verifier as it is there (a copy: should it keep something, it keeps it in this world only)."""

    weight: float
    known: dict[float, Interval]
    verifier: Any


@dataclass
class _Replay:
    """A Decider that follows a script of branch numbers, then takes first branches and notes the
    others."""

    known: dict[float, Interval]
    script: list[int]
    position: int = 0
    weight: float = 1.0
    open: list[int] = field(default_factory=list)  # number of branches at each decision

    def flip(self, u: Tensor, threshold: Tensor) -> Tensor:
        u, threshold = torch.broadcast_tensors(u, threshold)
        answers = [
            self._flip_one(label, c)
            for label, c in zip(u.flatten().tolist(), threshold.flatten().tolist(), strict=True)
        ]
        return torch.tensor(answers, dtype=torch.bool).view(u.shape)

    def choose(self, weights: Tensor, u: Tensor) -> Tensor:
        rows = u.reshape(weights.shape[0], -1).tolist()
        table = weights.double().tolist()
        answers = [
            self._choose_one(row, label)
            for row, row_labels in zip(table, rows, strict=True)
            for label in row_labels
        ]
        return torch.tensor(answers, dtype=torch.long).view(u.shape)

    def _flip_one(self, label: float, c: float) -> bool:
        low, high = self._interval(label)
        pieces = [(True, low, min(high, c)), (False, max(low, c), high)]
        return self._branch(label, pieces)

    def _choose_one(self, weights: list[float], label: float) -> int:
        low, high = self._interval(label)
        total = sum(weights)
        pieces, below = [], 0.0
        for token, weight in enumerate(weights):
            above = below + weight / total if total else below
            if weight > 0:
                pieces.append((token, max(low, below), min(high, above)))
            below = above
        return self._branch(label, pieces)

    def _interval(self, label: float) -> Interval:
        if label not in self.known:
            raise UnknownUniform(
                f"a random decision used {label!r}, which is none of the step's uniforms: the "
                "verifier makes its own randomness, or changes a uniform before using it"
            )
        return self.known[label]

    def _branch(self, label: float, pieces: list[tuple[Any, float, float]]) -> Any:
        """Split the label's interval into the pieces that are not empty, and take one."""
        low, high = self.known[label]
        pieces = [piece for piece in pieces if piece[2] - piece[1] > MIN_SHARE * (high - low)]
        if not pieces:  # nothing has mass (a NaN row, say): any answer, the verdict will tell
            return 0
        chosen = 0
        if len(pieces) > 1:
            if self.position < len(self.script):
                chosen = self.script[self.position]
            self.open.append(len(pieces))
            self.position += 1
        answer, start, stop = pieces[chosen]
        self.weight *= (stop - start) / (high - low)
        self.known[label] = (start, stop)
        return answer


def outcomes(world: World, call: Callable[[Any], Any]) -> Iterator[tuple[World, Any]]:
    """All (world, result) that ``call(verifier)`` may lead to from ``world``; weights add up."""
    script: list[int] = []
    while True:
        replay = _Replay(dict(world.known), script)
        verifier = copy.deepcopy(world.verifier)
        with deciding(replay):
            result = call(verifier)
        yield World(world.weight * replay.weight, replay.known, verifier), result
        taken = script + [0] * (len(replay.open) - len(script))
        while taken and taken[-1] + 1 >= replay.open[len(taken) - 1]:
            taken.pop()
        if not taken:
            return
        script = [*taken[:-1], taken[-1] + 1]
