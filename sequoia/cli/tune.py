"""``sequoia tune``: profile, search, choose, and check the choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequoia.cli.options import (
    MeasureOptions,
    ModelOptions,
    TreeOptions,
    measure_options,
    model_options,
)

if TYPE_CHECKING:
    from sequoia.cli.measuring import Measuring
    from tree_builder import TreeTopology
    from tree_builder.choose import Choice


@click.command(short_help="Find the fastest tree for your models and machine.")
@click.option(
    "--verifier",
    "verifiers",
    multiple=True,
    default=("rrs_wor", "target_match", "k_hub"),
    show_default=True,
    metavar="NAME",
    help="Rule to consider (repeatable); at temperature 0 all are the greedy one.",
)
@measure_options
@click.option("--max-nodes", type=click.IntRange(min=1), help="Largest tree to consider.")
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=int,
    help="Context to time at (repeatable). [default: the middle of the answers]",
)
@click.option(
    "--check",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="Further prompts to measure the chosen tree on, against plain decoding.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tuned.json"),
    show_default=True,
    help="The result, for --tree auto:FILE.",
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of tables, curves and plots. [default: beside --out]",
)
@click.option("--plot", is_flag=True, help="Also draw what was measured (needs matplotlib).")
@model_options
def tune(
    verifiers: tuple[str, ...],
    measures: MeasureOptions,
    max_nodes: int | None,
    contexts: tuple[int, ...],
    check: int,
    out: Path,
    work: Path | None,
    plot: bool,
    models: ModelOptions,
) -> None:
    """Measure a pair on this machine, choose the fastest tree and rule, and check the choice.

    Chains and "no speculation" are candidates. Everything measured is kept in --work: the same
    command continues after an interrupt, or starts from what is there.

    \b
    Examples:
      sequoia tune --out mine.json
      sequoia tune --temperature 0 --prompts 12 --out greedy.json --plot
      sequoia tune --verifier rrs_wor --verifier k_hub --target ./target --draft ./draft
      sequoia generate --tree auto:mine.json --prompt "Why is the sky blue?" --compare
    """
    if out.suffix != ".json":
        raise ValueError(f"{out}: the result is a .json file, not {out.suffix!r}")
    from sequoia.cli.measuring import Measuring, file_name, load_both, print_acceptance
    from sequoia.cli.session import note
    from sequoia.profiling.tuning import about_pair, prediction
    from sequoia.tuned import PREFIX, Tuned
    from tree_builder.choose import choose

    pair = load_both(models, TreeOptions("chain:2", verifiers[0]), measures.params())
    measuring = Measuring(pair, measures, work or out.with_suffix(""))
    tables, texts = measuring.acceptance(verifiers)
    print_acceptance(tables)
    for rule, table in tables.items():
        table.save(measuring.folder / f"acceptance-{file_name(rule)}.json")
    middles = [(text.start + len(text.ids)) // 2 for text in texts]
    context = max(2, sum(middles) // len(middles))  # known tokens at a typical step
    curves = measuring.latency(texts[0].ids, tuple(tables), max_nodes, contexts or (context,))
    curves.save(measuring.folder / "latency.json")
    choice = choose(tables, curves, context=context)
    click.echo(f"\n{choice.explain()}")
    expected = prediction(choice)
    rule = choice.chosen.rule
    tuned = Tuned(
        tree=choice.chosen.tree,
        verifier=verifiers[0] if rule == "greedy" else rule,
        prediction=expected,
        measurement=_check(measuring, choice, expected, check),
        provenance=about_pair(pair, measuring.params),
    )
    tuned.save(out)
    if plot:
        _plot(measuring.folder, tables, curves, choice)
    note(f"wrote {out}: use it with --tree {PREFIX}{out}")


def _check(
    measuring: Measuring, choice: Choice, expected: dict[str, Any], number: int
) -> dict[str, Any] | None:
    """Measure what was chosen; where that is no speculation, the best that drafts instead."""
    from sequoia.cli.measuring import bar
    from sequoia.profiling.tuning import side_by_side

    candidate = choice.drafting
    if number == 0 or candidate is None:
        return None
    if candidate is not choice.chosen:
        click.echo(f"\nFor comparison, {candidate.name} is measured:")
        expected = {"plain_step_ms": expected["plain_step_ms"], **expected["drafting"]}
    measured = _measure(measuring, candidate.tree, candidate.rule, number, bar("check"))
    click.echo("\n" + side_by_side(expected, measured))
    if measured["speed_up"] < 1:
        click.echo("Plain decoding is faster here: --draft none switches speculation off.")
    return {"tree": candidate.name, **measured}


def _measure(
    measuring: Measuring, tree: TreeTopology, rule: str, number: int, progress: Any
) -> dict[str, Any]:
    from sequoia import SpeculativeDecoder
    from sequoia.profiling import measure_speed

    known = measuring.options.prompts
    prompts = measuring.prompts(known + number)[known:] or measuring.prompts(number)
    length = max(len(prompt.ids) for prompt in prompts) + measuring.params.max_new_tokens
    decoder = SpeculativeDecoder(measuring.pair, tree, rule, max_length=length)
    journal = measuring.journal("check", parents=list(tree.parents), rule=rule)
    return measure_speed(decoder, prompts, measuring.params, journal, progress)


def _plot(folder: Path, tables: Any, curves: Any, choice: Choice) -> None:
    from sequoia.cli.session import note
    from sequoia.cli.tree import budgets
    from sequoia.plots import plot_acceptance, plot_latency, plot_sizes

    size = choice.chosen.tree.size
    plot_acceptance(tables, folder / "acceptance.svg")
    plot_latency(curves, folder / "latency.svg", [size])
    table = tables[choice.chosen.rule]
    plot_sizes(table, budgets(max(64, size)), folder / "sizes.svg", [size])
    note(f"wrote acceptance.svg, latency.svg and sizes.svg in {folder}")
