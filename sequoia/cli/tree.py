"""``sequoia tree``: the best tree for an acceptance table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tree_builder import AcceptanceTable, TreeTopology

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DRAWN = 64  # nodes up to which a tree is drawn as text without being asked


@click.command(short_help="Search the best tree for an acceptance table.")
@click.option("--acceptance", type=FILE, help="A table (.json) or a vector (.pt).")
@click.option("--latency", type=FILE, help="Curves of `sequoia profile`: choose the size by speed.")
@click.option("--config", type=FILE, help="A configuration of Sequoia's tree_search.py instead.")
@click.option("--nodes", type=int, help="Budget, root included. [default: 64, or what was timed]")
@click.option("--max-levels", type=int, help="Most levels, root included.")
@click.option("--rule", help="The rule of the table, if it does not say.")
@click.option("--context", type=int, help="Context that latency is taken at.")
@click.option(
    "--out",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the tree: .json, or a growmap .pt (repeatable).",
)
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: .svg or .png."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Plot tokens per step against size.",
)
def tree(
    acceptance: Path | None,
    latency: Path | None,
    config: Path | None,
    nodes: int | None,
    max_levels: int | None,
    rule: str | None,
    context: int | None,
    out: tuple[Path, ...],
    picture: Path | None,
    plot: Path | None,
) -> None:
    """Search the best tree for an acceptance table, and show what it is worth at every budget.

    With --latency the tree is the fastest on that machine, else the best of --nodes nodes.

    \b
    Examples:
      sequoia tree --acceptance profile/acceptance-rrs_wor.json --nodes 64 --out tree.json
      sequoia tree --acceptance vector.pt --latency profile/latency.json --out growmap.pt
      sequoia tree --config demo-config.json
    """
    if (acceptance is None) == (config is None):
        raise ValueError("give either --acceptance or --config")
    for file in out:
        if file.suffix not in (".json", ".pt"):
            raise ValueError(f"{file}: save a tree as .json or .pt, not {file.suffix!r}")
    if config is not None:
        table, found, about, destination = _from_config(config)
        out = out or destination
    else:
        assert acceptance is not None
        table, found, about = _from_table(acceptance, latency, nodes, max_levels, rule, context)
    _show(table, found, about)
    _write(table, found, about, out, picture, plot)


def _from_config(
    path: Path,
) -> tuple[AcceptanceTable, TreeTopology, str, tuple[Path, ...]]:
    from tree_builder.config_search import SearchConfig, search_config

    config = SearchConfig.load(path)
    result = search_config(config)
    _print_values(config.acceptance, max(config.budgets), config.max_levels)
    about = (
        f"budget {result.budget}, {result.levels} levels, {result.expected_tokens:.4f} tokens per "
        f"step, {result.time_per_token:.4f} ms per token, {result.speed_up:.4f} times faster"
    )
    destination = () if config.destination is None else (config.destination,)
    return config.acceptance, result.tree, about, destination


def _from_table(
    path: Path,
    latency: Path | None,
    nodes: int | None,
    max_levels: int | None,
    rule: str | None,
    context: int | None,
) -> tuple[AcceptanceTable, TreeTopology, str]:
    from tree_builder import AcceptanceTable, LatencyCurves, best_tree
    from tree_builder.choose import choose

    table = AcceptanceTable.load(path)
    if latency is None:
        nodes = 64 if nodes is None else nodes
        found, expected = best_tree(table, nodes, max_levels)
        _print_values(table, nodes, max_levels)
        return table, found, f"{expected:.4f} tokens per step"
    curves = LatencyCurves.load(latency)
    rule = rule or str(table.provenance.get("rule", "")) or "rrs_wor"
    limits = {} if max_levels is None else {"max_levels": max_levels}
    choice = choose({rule: table}, curves, context=context, max_size=nodes, **limits)
    _print_values(table, min(nodes or curves.max_tokens, curves.max_tokens), max_levels)
    return table, choice.chosen.tree, choice.explain()


def _print_values(table: AcceptanceTable, nodes: int, max_levels: int | None) -> None:
    """Expected tokens per step of every family, by budget."""
    from tree_builder.families import FAMILIES, best_of_families

    widths = [max(10, len(family)) for family in FAMILIES]
    names = "  ".join(family.rjust(width) for family, width in zip(FAMILIES, widths, strict=True))
    click.echo("expected tokens per step, the bonus included:")
    click.echo(f"{'nodes':>6}  {names}")
    for size in budgets(nodes):
        values = best_of_families(table, size, max_levels)
        cells = [
            f"{values[family][1]:.4f}".rjust(width)
            for family, width in zip(FAMILIES, widths, strict=True)
        ]
        click.echo(f"{size:>6}  " + "  ".join(cells))


def budgets(nodes: int) -> list[int]:
    """Powers of two up to ``nodes``, and ``nodes``. ValueError below 1."""
    if nodes < 1:
        raise ValueError(f"a tree has at least 1 node, the root: got {nodes}")
    return sorted({1 << power for power in range(nodes.bit_length())} | {nodes})


def _show(table: AcceptanceTable, found: TreeTopology, about: str) -> None:
    from tree_builder.draw import draw_text, summary

    click.echo(f"\n{about}\n{summary(found)}")
    if found.size <= DRAWN:
        click.echo(draw_text(found))


def _write(
    table: AcceptanceTable,
    found: TreeTopology,
    about: str,
    out: tuple[Path, ...],
    picture: Path | None,
    plot: Path | None,
) -> None:
    from sequoia.cli.session import note
    from sequoia.provenance import collect
    from tree_builder import save_tree
    from tree_builder.draw import draw_picture, summary
    from tree_builder.search import expected_tokens, node_values

    metadata = {
        "name": about.partition("\n")[0],
        "expected_tokens_per_step": expected_tokens(found, table),
        "provenance": {**collect(), "acceptance": dict(table.provenance)},
    }
    for path in out:
        save_tree(found, path, metadata if path.suffix == ".json" else None)
        note(f"wrote {path}")
    if picture is not None:
        draw_picture(found, picture, node_values(found, table).tolist(), summary(found))
        note(f"wrote {picture}")
    if plot is not None:
        from sequoia.plots import plot_sizes

        plot_sizes(table, budgets(max(found.size, 64)), plot, [found.size])
        note(f"wrote {plot}")
