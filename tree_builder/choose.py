"""Which tree and rule are fastest on a machine: the hardware-aware choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tree_builder.acceptance import AcceptanceTable
from tree_builder.latency import CATCH_UP, LatencyCurves
from tree_builder.search import BestTrees, best_trees_by_levels
from tree_builder.shapes import chain
from tree_builder.topology import TreeTopology

TOLERANCE = 0.005  # a difference in speed below this is noise: the smaller tree is taken


@dataclass(frozen=True)
class Candidate:
    """A tree with a rule, and what is predicted for it."""

    rule: str
    tree: TreeTopology
    expected_tokens: float  # per step, bonus included
    step_ms: float

    @property
    def kind(self) -> str:
        """`none` (no speculation), `chain` or `tree`."""
        if self.tree.size == 1:
            return "none"
        return "chain" if self.tree.max_children == 1 else "tree"

    @property
    def tokens_per_second(self) -> float:
        """Expected speed."""
        return 1000 * self.expected_tokens / self.step_ms

    @property
    def name(self) -> str:
        """A few words for a report."""
        if self.kind == "none":
            return "no speculation"
        levels = "" if self.kind == "chain" else f", {self.tree.num_levels} levels"
        return f"{self.kind} of {self.tree.size} nodes{levels}, {self.rule}"


@dataclass(frozen=True)
class Choice:
    """The candidate taken, and what it was weighed against.

    chosen      within the tolerance of the fastest, the one with the fewest nodes
    runner_up   the fastest of another kind or rule; None when there is no other
    baseline    no speculation
    drafting    the fastest candidate that drafts (the chosen one if it does); None: none exists
    context     context length the times are for
    """

    chosen: Candidate
    runner_up: Candidate | None
    baseline: Candidate
    drafting: Candidate | None
    context: int

    @property
    def speed_up(self) -> float:
        """Predicted speed of the chosen candidate over no speculation; 1.0 if that is chosen."""
        return self.chosen.tokens_per_second / self.baseline.tokens_per_second

    @property
    def break_even(self) -> float | None:
        """Tokens per step from which `drafting` beats no speculation: its step's time in steps
        of plain decoding."""
        return None if self.drafting is None else self.drafting.step_ms / self.baseline.step_ms

    def explain(self) -> str:
        """The choice in a few lines."""
        speed = self.chosen.tokens_per_second
        lines = [
            f"{self.chosen.name}: {self.chosen.expected_tokens:.3f} tokens per step, "
            f"{self.chosen.step_ms:.2f} ms per step, {speed:.1f} tokens/s predicted, "
            f"{self.speed_up:.2f} times plain decoding"
        ]
        if self.runner_up is not None:
            share = self.runner_up.tokens_per_second / speed - 1
            lines.append(f"runner-up {self.runner_up.name}: {100 * share:+.1f} % speed")
        if self.drafting is not None and self.break_even is not None:
            lines.append(
                f"{self.drafting.name} breaks even at {self.break_even:.3f} tokens per step, "
                f"expected {self.drafting.expected_tokens:.3f}"
            )
        return "\n".join(lines)


def choose(
    acceptance: Mapping[str, AcceptanceTable],
    curves: LatencyCurves,
    *,
    context: int | None = None,
    max_size: int | None = None,
    max_levels: int = 24,
    tolerance: float = TOLERANCE,
) -> Choice:
    """Maximise expected tokens per second over size, levels and rule.

    acceptance  one table per rule
    context     context length to predict for; None: the middle one of those measured
    max_size    largest tree; None (and at most): the largest that the curves can time

    Candidates are the best tree of every size and number of levels, every chain, and no
    speculation. A step costs a draft pass per level (of the level's width), a target pass of the
    tree's size, verification and commit. The curves are smoothed first.

    Stable: where every time is off by at most a share e, what is taken is at worst
    about 2e + tolerance slower than the best candidate: 1 % of error costs at most 2.5 %.
    (Smoothing makes e smaller than the error of a single point.)

    ValueError for no rules, limits below 1, and a rule whose verification was not measured.
    """
    if not acceptance:
        raise ValueError("no acceptance table: nothing to choose from")
    if max_levels < 1 or (max_size is not None and max_size < 1):
        raise ValueError(f"max_levels {max_levels} and max_size {max_size} must be at least 1")
    curves = curves.smoothed()
    size = curves.max_tokens if max_size is None else min(max_size, curves.max_tokens)
    if context is None:
        context = curves.target.contexts[len(curves.target.contexts) // 2]
    searches = [
        _Search(rule, table, curves, context, size, max_levels)
        for rule, table in acceptance.items()
    ]
    baseline = min((search.no_speculation() for search in searches), key=lambda c: c.step_ms)
    candidates = [baseline]
    for search in searches:
        candidates += search.chains()
        candidates += search.trees(tolerance)
    return _decide(candidates, baseline, context, tolerance)


def _decide(
    candidates: list[Candidate], baseline: Candidate, context: int, tolerance: float
) -> Choice:
    def speed(candidate: Candidate) -> float:
        return candidate.tokens_per_second

    least = (1 - tolerance) * max(map(speed, candidates))
    good = [candidate for candidate in candidates if speed(candidate) >= least]
    chosen = min(good, key=lambda c: (c.tree.size, -speed(c)))
    others = [c for c in candidates if (c.kind, c.rule) != (chosen.kind, chosen.rule)]
    if chosen is baseline:
        others = [c for c in candidates if c is not baseline]
    drafting = [c for c in candidates if c.kind != "none"]
    best = max(drafting, key=speed, default=None)
    return Choice(
        chosen=chosen,
        runner_up=max(others, key=speed, default=None),
        baseline=baseline,
        drafting=best if chosen is baseline else chosen,
        context=context,
    )


class _Search:
    """The candidates of one rule."""

    def __init__(
        self,
        rule: str,
        table: AcceptanceTable,
        curves: LatencyCurves,
        context: int,
        size: int,
        max_levels: int,
    ) -> None:
        self.rule, self.table, self.curves, self.context = rule, table, curves, context
        self.size, self.max_levels = size, min(max_levels, size)

    @cached_property
    def tree_ms(self) -> np.ndarray:
        """[size] time of everything but drafting for 1..size nodes."""
        return self.curves.tree_ms(np.arange(1, self.size + 1), self.rule, self.context)

    def no_speculation(self) -> Candidate:
        return Candidate(self.rule, chain(1), 1.0, float(self.tree_ms[0]))

    def chains(self) -> Iterator[Candidate]:
        """A chain of every length."""
        value = expected = 1.0
        for size in range(2, self.max_levels + 1):
            value *= float(self.table.at(size - 2, 1)[0])
            expected += value
            yield self._candidate(chain(size), expected)

    def trees(self, tolerance: float) -> Iterator[Candidate]:
        """The best trees by size and levels, save those that cannot come near the fastest.

        A tree of l levels is drafted in l - 1 passes over at least one node each, so its speed
        has a bound before it is built: the trees are built by falling bound, and when the bound
        falls below the fastest so far (by the tolerance), the rest is left out."""
        if self.size == 1 or self.max_levels == 1:
            return
        searches = best_trees_by_levels(self.table, self.size, self.max_levels)
        expected = np.stack([trees.expected[1:] for trees in searches])  # [levels, size]
        bounds = expected / (self.tree_ms + self._least_drafting(searches)[:, None])
        new = np.ones(expected.shape, dtype=bool)  # [levels, size] not the same tree as before
        new[0, 0] = False  # no speculation
        new[1:] = expected[1:] > expected[:-1]
        new[:, 1:] &= expected[:, 1:] > expected[:, :-1]
        fastest = 0.0
        for index in np.argsort(-bounds, axis=None):
            level, column = np.unravel_index(index, bounds.shape)
            if bounds[level, column] < (1 - tolerance) * fastest:
                return
            if not new[level, column]:
                continue
            tree = searches[level].tree(int(column) + 1)
            candidate = self._candidate(tree, float(expected[level, column]))
            fastest = max(fastest, candidate.expected_tokens / candidate.step_ms)
            yield candidate

    def _least_drafting(self, searches: list[BestTrees]) -> np.ndarray:
        """[levels] least time to draft a tree that needs this many levels."""
        catch_up, single = self.curves.draft.ms(np.array([CATCH_UP, 1]), self.context)
        passes = np.arange(len(searches))
        return np.where(passes > 0, catch_up + np.maximum(passes - 1, 0) * single, 0.0)

    def _candidate(self, tree: TreeTopology, expected: float) -> Candidate:
        ms = self.curves.step_ms(tree, self.rule, self.context)
        return Candidate(self.rule, tree, expected, ms)
