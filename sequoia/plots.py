"""Pictures of measurements; matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tree_builder import AcceptanceTable, LatencyCurves
from tree_builder.families import FAMILIES, best_of_families

SUFFIXES = (".svg", ".png", ".pdf")


def figure(path: str | Path, title: str, x: str, y: str) -> tuple[Any, Any]:
    """(matplotlib figure, axes). ValueError for another suffix, ImportError without matplotlib."""
    check_suffix(path)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: install the extra 'experiments'") from error
    made = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = made.add_subplot()
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return made, axes


def check_suffix(path: str | Path) -> None:
    """ValueError for a file that cannot hold a picture, before anything is measured for it."""
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"{path}: draw as {', '.join(SUFFIXES)}, not {Path(path).suffix!r}")


def plot_acceptance(tables: Mapping[str, AcceptanceTable], path: str | Path) -> None:
    """Acceptance of each child of a node with the most children, one line per rule and depth."""
    made, axes = figure(path, "Acceptance by position", "child, in draw order", "P(accepted)")
    for rule, table in tables.items():
        width = table.max_children
        for depth in range(table.num_depths):
            rates, errors = table.at(depth, width), None
            if table.standard_errors is not None:
                errors = table.standard_errors[depth, width - 1]
            label = rule if table.num_depths == 1 else f"{rule}, depth {depth}"
            axes.errorbar(range(1, width + 1), rates, errors, marker="o", label=label, capsize=2)
    positive = any((table.rates > 0).any() for table in tables.values())
    axes.set_yscale("log" if positive else "linear")
    axes.set_xticks(range(1, max(table.max_children for table in tables.values()) + 1))
    axes.legend(fontsize="small")
    made.savefig(path, dpi=150)


def plot_latency(curves: LatencyCurves, path: str | Path, sizes: Sequence[int] = ()) -> None:
    """All curves at every context, measured points with their spread; ``sizes`` are marked."""
    made, axes = figure(path, "Latency", "tokens", "ms (median, quartiles)")
    commit = {} if curves.commit is None else {"commit": curves.commit}
    verification = {f"verify {rule}": curve for rule, curve in curves.verification.items()}
    named = {"target": curves.target, "draft": curves.draft, **verification, **commit}
    for index, (name, curve) in enumerate(named.items()):
        for line, (context, points) in zip(
            ("-", "--", ":", "-.") * len(curve.contexts), curve.by_context.items(), strict=False
        ):
            axes.errorbar(
                [point.tokens for point in points],
                [point.median_ms for point in points],
                [point.spread_ms / 2 for point in points],
                color=f"C{index}",
                linestyle=line,
                marker=".",
                label=f"{name}, context {context}",
            )
    for size in sizes:
        axes.axvline(size, color="0.4", linewidth=0.8)
        axes.annotate(f"{size} nodes", (size, 1), xycoords=("data", "axes fraction"), va="top")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))
    made.savefig(path, dpi=150)


def plot_sizes(
    table: AcceptanceTable, sizes: Sequence[int], path: str | Path, chosen: Sequence[int] = ()
) -> None:
    """Expected tokens per step against size, for the best tree and the regular families."""
    made, axes = figure(path, "Tokens per step against size", "nodes", "expected tokens per step")
    found = [best_of_families(table, size) for size in sizes]
    for family, marker in zip(FAMILIES, ("o", "s", "v", "^"), strict=True):
        axes.plot(sizes, [each[family][1] for each in found], marker=marker, label=family)
    for size in chosen:
        axes.axvline(size, color="0.4", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize="small")
    made.savefig(path, dpi=150)
