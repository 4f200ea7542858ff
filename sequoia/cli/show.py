"""``sequoia show``: a tree or growmap as text or as a picture."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Draw and check a tree or growmap.")
@click.argument("tree")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Also write an .svg or .png."
)
@click.option(
    "--acceptance",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A table (.json) or vector (.pt): what the tree is worth, and the nodes' size.",
)
def show(tree: str, picture: Path | None, acceptance: Path | None) -> None:
    """Draw TREE: chain:N, kary:K^L, chains:WxD, or a file (.json, .pt, Sequoia growmaps too).

    The root at the left is the last known token; every other node is a drafted one. A growmap whose
    views disagree is refused, and the place named.

    \b
    Examples:
      sequoia show kary:2^3
      sequoia show chains:4x8 --picture tree.svg
      sequoia show growmaps/my-tree.pt --acceptance vector.pt --picture my-tree.png
    """
    from tree_builder import AcceptanceTable, read_tree
    from tree_builder.draw import draw_picture, draw_text, summary
    from tree_builder.search import node_values

    topology, about = read_tree(tree)
    click.echo(summary(topology))
    values = None
    if acceptance is not None:
        values = node_values(topology, AcceptanceTable.load(acceptance)).tolist()
        click.echo(f"{sum(values):.4f} expected tokens per step")
    if isinstance(about.get("verifier"), str):
        click.echo(f"chosen for verifier {about['verifier']}")
    click.echo(draw_text(topology))
    if picture is not None:
        draw_picture(topology, picture, values, title=tree)
        click.echo(f"wrote {picture}", err=True)
