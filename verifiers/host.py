"""Filters and draws in host memory: NumPy's searches and partitions, row by row.

:mod:`verifiers.probs` calls these where a tensor lies in host memory anyway; each has a form there
for tensors on a device, with the same result. A value read here costs nothing, so a threshold is
bisected for and a block of weights searched where a device must sort or scan the whole row; and a
NumPy call on a short array takes a microsecond, a chain of tensor calls 100.

Arrays in, arrays out; nothing here makes a random decision of its own.
"""

from __future__ import annotations

import math

import numpy as np

SORTED_BAND = 2048  # candidates for a top-p threshold that are sorted rather than split again


def kth_largest(scaled: np.ndarray, k: int) -> np.ndarray:
    """[b, V] -> [b, 1], 0 < k < V. Partitions a row several times faster than torch's topk."""
    return np.partition(scaled, -k, axis=-1)[:, -k, None]


def nucleus(probs: np.ndarray, top_p: float) -> np.ndarray:
    """Smallest probability kept by top-p < 1, [b, V] -> [b, 1] of the same dtype: bisect for the
    threshold, sort only what is left near it."""
    least = [_nucleus_of_row(row, top_p) for row in probs]
    return np.array(least, dtype=probs.dtype)[:, None]


def _nucleus_of_row(row: np.ndarray, top_p: float) -> float:
    """The band holds every token the threshold may be, ``above`` the mass of all likelier ones.

    It starts at (1 - top_p) / V: all tokens below that together hold less than 1 - top_p.
    """
    band, above = row, 0.0
    low, high = (1 - top_p) / row.size, float(row.max())
    while band.size > SORTED_BAND and high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        likelier = band[band >= middle]
        mass = float(likelier.sum(dtype=np.float64))
        if above + mass >= top_p:
            band, low = likelier, middle
        else:
            band, above, high = band[band < middle], above + mass, middle
    if band.size == 0:  # rounding: all of the row holds less than top_p, so all of it is kept
        return float(row.min())
    ordered = np.sort(band)[::-1]
    before = np.cumsum(ordered, dtype=np.float64) - ordered + above
    kept = max(int(np.count_nonzero(before < top_p)), 1)
    return float(ordered[kept - 1])


def invert(weights: np.ndarray, sums: np.ndarray, targets: np.ndarray, block: int) -> np.ndarray:
    """The first index whose cumulative weight exceeds each target.

    weights: [b, V] >= 0; sums: [b, n] fp64, those of its blocks of ``block`` entries (the last may
    be short); targets: [b, k] fp64, in units of weight -> [b, k] int64. Only the block hit is read:
    ``sums`` may be rounded, so the target's place within a block is carried over as a share of it.
    """
    cumulative = sums.cumsum(-1)
    drawn = np.empty(targets.shape, dtype=np.int64)
    for (row, column), target in np.ndenumerate(targets):
        hit = _search(cumulative[row], target)
        before = cumulative[row, hit - 1] if hit else 0.0
        weight = cumulative[row, hit] - before
        share = (target - before) / weight if weight > 0 else 0.0  # 0, NaN: a faulty row
        inside = weights[row, hit * block : (hit + 1) * block].cumsum(dtype=np.float64)
        drawn[row, column] = hit * block + _search(inside, min(share, 1.0) * inside[-1])
    return drawn


def _search(sums: np.ndarray, target: float) -> int:
    """First index whose sum exceeds the target. Sums in order never grow without a weight."""
    index = int(sums.searchsorted(target, side="right"))
    if index == sums.size:  # rounding: the last index with weight, the first to reach the total
        index = int(sums.searchsorted(sums[-1]))
    return index
