"""Pictures of a tree: as text, and as SVG or PNG with node size by expected acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tree_builder.storage import FilePath
from tree_builder.topology import TreeTopology


def draw_text(tree: TreeTopology, labels: Sequence[object] | None = None) -> str:
    """Root at the left, one line per leaf, a first child on its parent's line:

        0─┬─1─┬─3───6───7
          │   └─4
          └─2───5

    `labels[i]` is written for node i (its number by default).
    """
    labels = range(tree.size) if labels is None else labels
    if len(labels) != tree.size:
        raise ValueError(f"{len(labels)} labels for a tree of {tree.size} nodes")
    names = [str(label) for label in labels]
    # Columns line up: every label of a level is padded to the level's widest.
    widths = [max(len(names[node]) for node in level) for level in tree.levels]
    lines: list[str] = []
    # (node, text before it on its line, text below it on the lines of its later siblings)
    stack = [(0, "", "")]
    while stack:
        node, before, below = stack.pop()
        children = tree.children[node]
        line = before + names[node]
        if not children:
            lines.append(line)
            continue
        fill = widths[tree.depth[node]] - len(names[node])
        margin = below + " " * widths[tree.depth[node]]
        for slot in reversed(range(len(children))):
            is_last = slot == len(children) - 1
            if slot == 0:
                start = line + "─" * fill + ("───" if is_last else "─┬─")
            else:
                start = margin + (" └─" if is_last else " ├─")
            stack.append((children[slot], start, margin + ("   " if is_last else " │ ")))
    return "\n".join(lines)


def summary(tree: TreeTopology) -> str:
    """One line: size, levels, width, children."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" + ("" if number == 1 else "s")

    widest = max(map(len, tree.levels))
    children = f"at most {tree.max_children} children" if tree.max_children != 1 else "a chain"
    return (
        f"{count(tree.size, 'node')} ({tree.size - 1} drafted), {count(tree.num_levels, 'level')}"
        + (f", widest level {widest}, {children}" if tree.size > 1 else ", no drafting")
    )


def draw_picture(
    tree: TreeTopology, path: FilePath, values: Sequence[float] | None = None, title: str = ""
) -> None:
    """Write an `.svg` or `.png` of the tree, root at the top.

    `values[i]` in [0, 1], the probability that node i is accepted (see
    `search.node_values`), gives the node's area; all equal when left out.
    ValueError for another suffix or a wrong length, ImportError without matplotlib.
    """
    if Path(path).suffix not in (".svg", ".png"):
        raise ValueError(f"{path}: draw a tree as .svg or .png, not {Path(path).suffix!r}")
    if values is not None and len(values) != tree.size:
        raise ValueError(f"{len(values)} values for a tree of {tree.size} nodes")
    try:
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib: install the extra 'experiments', or draw as text"
        ) from error

    across = _positions(tree)
    width = min(max(3.0, 0.28 * (max(across) + 1)), 40.0)
    figure = Figure(figsize=(width, max(2.0, 0.7 * tree.num_levels)), layout="constrained")
    axes = figure.add_subplot()
    edges = [
        [(across[parent], -tree.depth[parent]), (across[node], -tree.depth[node])]
        for node, parent in enumerate(tree.parents)
        if parent >= 0
    ]
    axes.add_collection(LineCollection(edges, colors="0.7", linewidths=0.8, zorder=1))
    areas = [30.0] * tree.size if values is None else [4 + 150 * value for value in values]
    axes.scatter(across, [-depth for depth in tree.depth], s=areas, color="tab:green", zorder=2)
    axes.set_xlim(-1, max(across) + 1)
    axes.set_yticks(range(0, -tree.num_levels, -1), [str(d) for d in range(tree.num_levels)])
    axes.set_ylabel("depth")
    axes.set_xticks([])
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(title or summary(tree), fontsize="small")
    figure.savefig(path, dpi=150)


def _positions(tree: TreeTopology) -> list[float]:
    """Horizontal place of every node: leaves side by side, a parent over its children's middle."""
    across = [0.0] * tree.size
    next_leaf, stack = 0, [0]
    while stack:  # leaves in drawing order
        node = stack.pop()
        if not tree.children[node]:
            across[node] = float(next_leaf)
            next_leaf += 1
        stack.extend(reversed(tree.children[node]))
    for node in reversed(tree.inner):
        children = tree.children[node]
        across[node] = (across[children[0]] + across[children[-1]]) / 2
    return across
