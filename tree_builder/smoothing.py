"""Noise taken out of a measured latency curve before a choice is made with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PASSES = 4  # of averaging with the neighbours
BEND = 3.0  # standard deviations beyond which a point is a bend of the curve, not noise


def smooth_times(tokens: Sequence[int], times: Sequence[float]) -> list[float]:
    """The times of a curve that never falls with more tokens and has less noise.

    tokens ascending, times positive. No pass gets faster by having more tokens, so a fall is
    noise; and between its bends a curve is straight, so a point that lies near the line between
    its neighbours is averaged with it. What counts as near is estimated from all the points:
    a curve measured without noise keeps its bends.
    """
    logs = np.array(isotonic(np.log(times).tolist()))
    if len(logs) >= 5:  # fewer do not tell noise from bends
        logs = np.array(isotonic(_even_out(np.asarray(tokens, dtype=float), logs).tolist()))
    return np.exp(logs).tolist()


def isotonic(values: Sequence[float]) -> list[float]:
    """Least-squares fit that never decreases, by pooling adjacent violators.

    No value moves further than the largest error of those it is pooled with."""
    pools: list[tuple[float, int]] = []  # mean, count
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            lower_mean, lower_count = pools.pop()
            mean = (lower_mean * lower_count + mean * count) / (lower_count + count)
            count += lower_count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def _even_out(tokens: np.ndarray, logs: np.ndarray) -> np.ndarray:
    left = (tokens[2:] - tokens[1:-1]) / (tokens[2:] - tokens[:-2])  # weight of the left neighbour
    logs = logs.copy()
    for _ in range(PASSES):
        line = np.log(left * np.exp(logs[:-2]) + (1 - left) * np.exp(logs[2:]))
        away = line - logs[1:-1]
        deviation = 1.4826 * np.median(np.abs(away))  # of a normal distribution, from its median
        logs[1:-1] += np.where(np.abs(away) <= BEND * deviation, away / 2, 0.0)
    return logs
