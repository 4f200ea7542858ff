"""Latency curves: measured time of a pass by its number of tokens and the context's length."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tree_builder.smoothing import smooth_times
from tree_builder.storage import FilePath, read_json, write_json
from tree_builder.topology import TreeTopology

FORMAT = "latency-curves"
CATCH_UP = 2  # tokens of the first draft pass of a step: at most two are new to the draft


class LatencyPoint(NamedTuple):
    """One measurement: milliseconds of a pass over `tokens` tokens behind `context` others."""

    context: int
    tokens: int
    median_ms: float
    spread_ms: float = 0.0  # interquartile range over the repetitions


@dataclass(frozen=True)
class LatencyCurve:
    """Median times between measured points: piecewise linear in tokens and in context.

    Fewer tokens than the smallest measured take its time, and contexts outside the measured
    ones that of the nearest; more tokens than the largest measured are a ValueError.
    ValueError for no points, a point given twice, a context or token count below 0 or 1, and
    times that are not positive and finite.
    """

    points: tuple[LatencyPoint, ...]

    def __post_init__(self) -> None:
        points = tuple(sorted(map(_as_point, self.points)))
        object.__setattr__(self, "points", points)
        if not points:
            raise ValueError("a latency curve needs at least one measured point")
        for point in points:
            if point.context < 0 or point.tokens < 1:
                raise ValueError(f"latency point of {point.tokens} tokens, context {point.context}")
            if not (0 < point.median_ms < math.inf and 0 <= point.spread_ms < math.inf):
                raise ValueError(
                    f"latency of {point.tokens} tokens at context {point.context}: "
                    f"median {point.median_ms} ms, spread {point.spread_ms} ms"
                )
        for one, other in itertools.pairwise(points):
            if one[:2] == other[:2]:
                raise ValueError(f"context {one.context}, {one.tokens} tokens: measured twice")

    @classmethod
    def of_times(cls, times: Mapping[int, float], context: int = 0) -> LatencyCurve:
        """A curve of one context from {tokens: median ms}."""
        return cls(tuple(LatencyPoint(context, tokens, ms) for tokens, ms in times.items()))

    @cached_property
    def by_context(self) -> dict[int, tuple[LatencyPoint, ...]]:
        """The points of every measured context, ascending in context and tokens."""
        contexts = sorted({point.context for point in self.points})
        return {c: tuple(point for point in self.points if point.context == c) for c in contexts}

    @property
    def contexts(self) -> tuple[int, ...]:
        """Measured context lengths, ascending."""
        return tuple(self.by_context)

    @cached_property
    def max_tokens(self) -> int:
        """Largest number of tokens measured at every context."""
        return min(points[-1].tokens for points in self.by_context.values())

    def ms(self, tokens: int | np.ndarray, context: int) -> np.ndarray:
        """Interpolated median, in the shape of `tokens`."""
        return self._interpolate(tokens, context, "median_ms")

    def spread(self, tokens: int | np.ndarray, context: int) -> np.ndarray:
        """Interpolated spread, in the shape of `tokens`."""
        return self._interpolate(tokens, context, "spread_ms")

    def smoothed(self) -> LatencyCurve:
        """The curve without falls and with less noise, see `smoothing.smooth_times`."""
        smooth = []
        for points in self.by_context.values():
            tokens, times = zip(*[(point.tokens, point.median_ms) for point in points], strict=True)
            pairs = zip(points, smooth_times(tokens, times), strict=True)
            smooth += [point._replace(median_ms=ms) for point, ms in pairs]
        return LatencyCurve(tuple(smooth))

    def _interpolate(self, tokens: int | np.ndarray, context: int, name: str) -> np.ndarray:
        counts = np.asarray(tokens)
        if counts.size and counts.max() > self.max_tokens:
            raise ValueError(f"{counts.max()} tokens: latency is measured up to {self.max_tokens}")
        contexts = self.contexts
        below = max((c for c in contexts if c <= context), default=contexts[0])
        above = min((c for c in contexts if c >= context), default=contexts[-1])
        low, high = (
            np.interp(
                counts,
                [point.tokens for point in self.by_context[c]],
                [getattr(point, name) for point in self.by_context[c]],
            )
            for c in (below, above)
        )
        share = 0.0 if above <= below else (context - below) / (above - below)
        return low + share * (high - low)


@dataclass(frozen=True)
class LatencyCurves:
    """Everything a step of a pair takes on one machine.

    target        a target pass over m tree nodes
    draft         a draft pass over a level's nodes, drawing their children included
    verification  by rule: verifying a tree of m nodes; empty = not measured, counts as 0
    commit        compacting the caches after a tree of m nodes; None = counts as 0
    machine       device, processor, threads, dtype, commit, versions, ... (JSON)
    """

    target: LatencyCurve
    draft: LatencyCurve
    verification: Mapping[str, LatencyCurve] = field(default_factory=dict)
    commit: LatencyCurve | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def max_tokens(self) -> int:
        """The largest tree that all the curves can time."""
        curves = [self.target, self.draft, *self.verification.values()]
        return min(curve.max_tokens for curve in [*curves, self.commit] if curve is not None)

    def smoothed(self) -> LatencyCurves:
        """All curves smoothed."""
        verification = {rule: curve.smoothed() for rule, curve in self.verification.items()}
        commit = None if self.commit is None else self.commit.smoothed()
        return LatencyCurves(
            self.target.smoothed(), self.draft.smoothed(), verification, commit, self.machine
        )

    def tree_ms(self, size: int | np.ndarray, rule: str, context: int) -> np.ndarray:
        """Target pass, verification and commit of a tree of `size` nodes.

        ValueError when verification was measured, but not for this rule."""
        total = self.target.ms(size, context)
        if self.verification:
            if rule not in self.verification:
                known = ", ".join(self.verification)
                raise ValueError(f"verification of {rule!r} was not measured, only of {known}")
            total = total + self.verification[rule].ms(size, context)
        return total if self.commit is None else total + self.commit.ms(size, context)

    def step_ms(self, tree: TreeTopology, rule: str, context: int) -> float:
        """Predicted time of one step: every draft pass, then `tree_ms`."""
        drafting = sum(float(self.draft.ms(width, context)) for width in draft_widths(tree))
        return drafting + float(self.tree_ms(tree.size, rule, context))

    def save(self, path: FilePath) -> None:
        """JSON: points as [context, tokens, median ms, spread ms]."""
        data = {
            "format": FORMAT,
            "machine": dict(self.machine),
            "target": self.target.points,
            "draft": self.draft.points,
            "verification": {rule: curve.points for rule, curve in self.verification.items()},
            "commit": None if self.commit is None else self.commit.points,
        }
        write_json(data, path)

    @classmethod
    def load(cls, path: FilePath) -> LatencyCurves:
        """ValueError, naming the file, for anything that `save` does not write."""
        data = read_json(path)
        if data.get("format") != FORMAT:
            raise ValueError(f'{path}: not latency curves (no "format": "{FORMAT}")')
        try:
            commit = data.get("commit")
            verification = data.get("verification") or {}
            return cls(
                _curve(data["target"]),
                _curve(data["draft"]),
                {rule: _curve(points) for rule, points in verification.items()},
                None if commit is None else _curve(commit),
                data.get("machine") or {},
            )
        except KeyError as error:
            raise ValueError(f"{path}: {error} is missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from None


def draft_widths(tree: TreeTopology) -> tuple[int, ...]:
    """Tokens of each draft pass of a step: the catch-up, then each deeper level's inner nodes."""
    if tree.size == 1:
        return ()
    inner = [sum(bool(tree.children[node]) for node in level) for level in tree.levels[1:-1]]
    return (CATCH_UP, *inner)


def _curve(points: Sequence[Sequence[float]]) -> LatencyCurve:
    return LatencyCurve(tuple(LatencyPoint(*point) for point in points))  # type: ignore[arg-type]


def _as_point(point: LatencyPoint) -> LatencyPoint:
    """Plain numbers, so that they can be written as JSON."""
    context, tokens, *times = point
    return LatencyPoint(operator.index(context), operator.index(tokens), *map(float, times))
