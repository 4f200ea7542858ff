"""``sequoia show``: a tree or growmap as text or as a picture."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Draw a tree or growmap.")
@click.argument("tree")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Also write an .svg or .png."
)
def show(tree: str, picture: Path | None) -> None:
    """Draw TREE: chain:N, kary:K^L, chains:WxD, or a file (.json, .pt, Sequoia growmaps too).

    The root at the left is the last known token; every other node is a drafted one. A growmap whose
    views disagree is refused, and the place named.

    \b
    Examples:
      sequoia show kary:2^3
      sequoia show chains:4x8 --picture tree.svg
      sequoia show growmaps/my-tree.pt
    """
    from tree_builder import load_tree
    from tree_builder.draw import draw_picture, draw_text, summary

    topology = load_tree(tree)
    click.echo(summary(topology))
    click.echo(draw_text(topology))
    if picture is not None:
        draw_picture(topology, picture, title=tree)
        click.echo(f"wrote {picture}", err=True)
