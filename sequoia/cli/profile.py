"""``sequoia profile``: measure a pair's acceptance and latency into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sequoia.cli.options import (
    MeasureOptions,
    ModelOptions,
    TreeOptions,
    measure_options,
    model_options,
)

WHAT = ("acceptance", "live", "latency")

if TYPE_CHECKING:
    from sequoia.cli.measuring import Measuring
    from tree_builder import AcceptanceTable


@click.command(short_help="Measure acceptance and latency of a pair.")
@click.argument("what", nargs=-1, type=click.Choice(WHAT))
@click.option(
    "--verifier",
    "verifiers",
    multiple=True,
    default=("rrs_wor",),
    show_default=True,
    metavar="NAME",
    help="Rule to measure (repeatable).",
)
@click.option(
    "--tree",
    default="kary:4^3",
    show_default=True,
    help="The tree that live acceptance is counted on.",
)
@measure_options
@click.option("--max-nodes", type=click.IntRange(min=1), help="Largest pass to time.")
@click.option(
    "--context", "contexts", multiple=True, type=int, help="Context to time at (repeatable)."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("profile"),
    show_default=True,
    help="Folder of the results.",
)
@click.option("--plot", is_flag=True, help="Also draw what was measured (needs matplotlib).")
@model_options
def profile(
    what: tuple[str, ...],
    verifiers: tuple[str, ...],
    tree: str,
    measures: MeasureOptions,
    max_nodes: int | None,
    contexts: tuple[int, ...],
    out: Path,
    plot: bool,
    models: ModelOptions,
) -> None:
    """Measure WHAT of a pair: acceptance and latency, or any of acceptance, live, latency.

    `acceptance` is exact per position, teacher-forced over the target's own answers (or --text);
    `live` counts while generating on --tree, which serves every verifier, traversal forms too;
    `latency` times the engine's phases. Results are written as they come: the same command
    continues after an interrupt.

    \b
    Examples:
      sequoia profile --out runs/mine --plot
      sequoia profile acceptance --verifier rrs_wor --verifier k_hub --temperature 0.6 --top-p 0.9
      sequoia profile live --tree kary:3^3 --verifier rrs_wor/traversal
      sequoia profile latency --max-nodes 512 --context 256 --context 2048
    """
    what = what or ("acceptance", "latency")
    from sequoia.cli.measuring import Measuring, file_name, load_both, print_acceptance
    from sequoia.cli.session import note

    grown = tree if "live" in what else "chain:2"
    pair = load_both(models, TreeOptions(grown, verifiers[0]), measures.params())
    measuring = Measuring(pair, measures, out)
    tables: dict[str, AcceptanceTable] = {}
    written: list[Path] = []
    if "acceptance" in what:
        tables, _ = measuring.acceptance(verifiers)
    if "live" in what:
        for verifier in verifiers:
            tables[f"{verifier} live"] = _live(measuring, verifier, tree)
    for name, table in tables.items():
        written.append(out / f"acceptance-{file_name(name).replace(' ', '-')}.json")
        table.save(written[-1])
    print_acceptance(tables)
    curves = None
    if "latency" in what:
        text = measuring.prompts(1)[0].ids
        curves = measuring.latency(text, verifiers, max_nodes, contexts)
        written.append(out / "latency.json")
        curves.save(written[-1])
        for name, curve in (("target", curves.target), ("draft", curves.draft)):
            points = curve.by_context[curve.contexts[0]]
            line = ", ".join(f"{point.tokens}: {point.median_ms:.2f}" for point in points)
            click.echo(f"{name} pass, ms by tokens at context {curve.contexts[0]}: {line}")
    if plot:
        from sequoia.plots import plot_acceptance, plot_latency

        if tables:
            written.append(out / "acceptance.svg")
            plot_acceptance(tables, written[-1])
        if curves is not None:
            written.append(out / "latency.svg")
            plot_latency(curves, written[-1])
    for path in written:
        note(f"wrote {path}")


def _live(measuring: Measuring, verifier: str, tree: str) -> AcceptanceTable:
    from sequoia import SpeculativeDecoder
    from sequoia.cli.measuring import bar, file_name
    from sequoia.profiling import profile_live
    from sequoia.profiling.tuning import about_pair

    prompts = measuring.prompts(measuring.options.prompts)
    longest = max(len(prompt.ids) for prompt in prompts) + measuring.params.max_new_tokens
    decoder = SpeculativeDecoder(measuring.pair, tree, verifier, max_length=longest)
    depths = measuring.options.depths
    what = {"tree": tree, "rule": verifier, "num_depths": depths}
    journal = measuring.journal(f"live-{file_name(verifier)}", **what)
    about = about_pair(measuring.pair, measuring.params)
    return profile_live(
        decoder, prompts, measuring.params, depths, journal, bar(f"live {verifier}"), about
    )
