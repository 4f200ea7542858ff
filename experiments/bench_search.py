"""Times of the tree search, beside a plain transcription of the published recurrence.

    python -m experiments.bench_search [--size 768] [--levels 24] [--repeats 5]

Prints a table (median and fastest of the repeats) and one JSON line. The last two rows solve the
same problem of 128 nodes; their expected tokens must agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

from tree_builder import AcceptanceTable, best_tree, best_trees

RECURRENCE_SIZE = 128


def falling_vector(num_children: int) -> list[float]:
    """[W] a smooth vector like those measured: 0.77 for the first child, a heavy tail."""
    tail = [1 / (j + 1) ** 1.5 for j in range(1, num_children)]
    return [0.77] + [0.2 * weight / sum(tail) for weight in tail]


def bumpy_vector(num_children: int) -> list[float]:
    """[W] the same with a tail that is not monotone, as noise makes it."""
    vector = falling_vector(num_children)
    return vector[:1] + [rate * (0.8 if j % 2 else 1.2) for j, rate in enumerate(vector[1:])]


def table(num_children: int) -> AcceptanceTable:
    """A[b][j] that depends on b: more children make the first one less likely."""
    rows = []
    for count in range(1, num_children + 1):
        vector = falling_vector(count) if count > 1 else [0.77]
        rows.append([rate * 0.99**count for rate in vector])
    return AcceptanceTable.from_rows(rows)


def recurrence(rates: Sequence[float], size: int, max_levels: int) -> float:
    """Sequoia's recurrence as printed (arXiv 2402.12374, section 3.1), in plain Python.

    T(n, l, b): most expected tokens of a tree of n nodes in at most l levels whose root has b
    children; T(n, l, b) = max over s of T(n - s, l, b - 1) + rates[b] max over b' of T(s, l-1, b').
    """
    impossible = float("-inf")
    width = len(rates)
    shallower = [impossible] * (size + 1)  # max over b' of T(s, l - 1, b')
    shallower[1] = 1.0
    for _ in range(2, max_levels + 1):
        by_width = [[impossible] * (size + 1) for _ in range(width + 1)]
        by_width[0][1] = 1.0
        for b in range(1, width + 1):
            for n in range(2, size + 1):
                best = impossible
                for s in range(1, n):
                    value = by_width[b - 1][n - s] + rates[b - 1] * shallower[s]
                    if value > best:
                        best = value
                by_width[b][n] = best
        shallower = [max(row[n] for row in by_width) for n in range(size + 1)]
    return max(shallower)


def measure(search: Callable[[], float], repeats: int) -> tuple[float, float, float]:
    """Median and fastest time in ms, and what the search found."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = search()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), min(times), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=768, help="nodes of the tree, root included")
    parser.add_argument("--levels", type=int, default=24, help="levels at most, root included")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    size, levels, repeats = arguments.size, arguments.levels, arguments.repeats

    falling = AcceptanceTable.from_rates(falling_vector(32))
    bumpy = AcceptanceTable.from_rates(bumpy_vector(32))
    by_children = table(8)
    rates = falling_vector(32)
    small = RECURRENCE_SIZE
    rows = {
        f"vector, {size} nodes, best tree": lambda: best_tree(falling, size, levels)[1],
        f"vector, {size} nodes, all sizes": lambda: best_trees(falling, size, levels).expected[-1],
        f"not monotone, {size} nodes": lambda: best_tree(bumpy, size, levels)[1],
        f"table of 8 children, {size} nodes": lambda: best_tree(by_children, size, levels)[1],
        f"table, {size} nodes, any depth": lambda: best_tree(by_children, size)[1],
        f"vector, {small} nodes": lambda: best_tree(falling, small, levels)[1],
        f"published recurrence, {small} nodes": lambda: recurrence(rates, small, levels),
    }
    results = {}
    print(f"{'search':40} {'median ms':>12} {'fastest ms':>12} {'tokens/step':>12}")
    for name, search in rows.items():
        median, fastest, found = measure(search, 1 if "recurrence" in name else repeats)
        print(f"{name:40} {median:12.2f} {fastest:12.2f} {found:12.4f}")
        results[name] = {"median_ms": median, "fastest_ms": fastest, "expected": float(found)}
    print(json.dumps({"levels": levels, "repeats": repeats, "results": results}))


if __name__ == "__main__":
    main()
