"""What ``profile`` and ``tune`` share: texts, journals, progress bars, tables and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequoia.cli.options import NO_DRAFT, MeasureOptions, ModelOptions, TreeOptions

if TYPE_CHECKING:
    from sequoia.config import SamplingParams
    from sequoia.pair import Pair
    from sequoia.profiling import Journal, Text
    from tree_builder import AcceptanceTable, LatencyCurves

CONTEXTS = (128, 512, 1024)
CPU_NODES = 128  # trees worth timing where every token of a pass costs


def load_both(models: ModelOptions, trees: TreeOptions, params: SamplingParams) -> Pair:
    """The pair; a request without a draft is refused before anything is loaded."""
    from sequoia.cli.session import load

    if models.draft == NO_DRAFT:
        raise ValueError(
            f"--draft {NO_DRAFT}: acceptance and latency are measured of a pair, give a draft model"
        )
    return load(models, trees, params)


class Measuring:
    """One pair, one folder of results; a second run with the same options continues there."""

    def __init__(self, pair: Pair, options: MeasureOptions, folder: Path) -> None:
        self.pair, self.options, self.folder = pair, options, folder
        self.params = options.params()
        folder.mkdir(parents=True, exist_ok=True)

    def journal(self, name: str, **what: Any) -> Journal:
        """The journal of one measurement, which all of ``what`` changes the results of."""
        from sequoia.profiling import Journal
        from sequoia.profiling.tuning import journal_settings

        return Journal(
            self.folder / f"{name}.jsonl", journal_settings(self.pair, self.params, **what)
        )

    def prompts(self, number: int) -> list[Text]:
        """Shipped prompts that leave room for an answer."""
        from sequoia.profiling import shipped_prompts

        room = self.pair.max_length - self.params.max_new_tokens
        return shipped_prompts(self.pair, number, room, self.options.kind)

    def acceptance(self, rules: Sequence[str]) -> tuple[dict[str, AcceptanceTable], list[Text]]:
        """Static tables, and the texts they were measured on."""
        from sequoia.profiling import StaticSettings, file_texts, own_texts, profile_static
        from sequoia.profiling.tuning import about_pair

        options = self.options
        settings = StaticSettings(
            tuple(rules), options.max_children, options.depths, options.positions
        )
        journal = self.journal("acceptance", **asdict(settings))
        if options.text is None:
            prompts = self.prompts(options.prompts)
            texts = own_texts(self.pair, prompts, self.params, journal, bar("answers"))
        else:
            length = min(options.new_tokens, self.pair.max_length)
            texts = file_texts(self.pair, options.text, length, options.prompts)
        about = about_pair(self.pair, self.params, **asdict(settings))
        source = "the target's own answers" if options.text is None else Path(options.text).name
        about["source"] = source
        tables = profile_static(
            self.pair, texts, self.params, settings, journal, bar("acceptance"), about
        )
        return tables, texts

    def latency(
        self, text: Sequence[int], rules: Sequence[str], max_nodes: int | None, contexts: Any
    ) -> LatencyCurves:
        """Curves up to ``max_nodes`` (default: 1024 on a GPU, less on a CPU)."""
        from tqdm import tqdm

        from sequoia.profiling import LatencySettings, measure_latency

        if max_nodes is None:
            device = next(self.pair.target.parameters()).device
            most = CPU_NODES if device.type == "cpu" else 1024
            max_nodes = min(most, self.pair.max_length // 2)
        if not contexts:
            room = self.pair.max_length - max_nodes
            contexts = [c for c in CONTEXTS if c <= room] or [max(2, room)]
        settings = LatencySettings(max_nodes, tuple(contexts), tuple(rules))
        with tqdm(desc="latency", unit=" points", disable=None) as progress:

            def done(what: str) -> None:
                progress.set_postfix_str(what)
                progress.update()

            journal = self.journal("latency", rules=settings.rules, clock=asdict(settings.clock))
            return measure_latency(self.pair, text, self.params, settings, journal, done)


def bar(name: str) -> Callable[[Sequence], Any]:
    """A progress bar on stderr, for a person."""
    from tqdm import tqdm

    return partial(tqdm, desc=name, disable=None)


def print_acceptance(tables: dict[str, AcceptanceTable]) -> None:
    """Each rule's longest row at every depth, with standard errors."""
    for rule, table in tables.items():
        width = table.max_children
        for depth in range(table.num_depths):
            rates = table.at(depth, width)
            line = " ".join(f"{rate:.4f}" for rate in rates)
            where = "" if table.num_depths == 1 else f" depth {depth}"
            deeper = "+" if depth and depth == table.num_depths - 1 else ""
            click.echo(f"{rule}{where}{deeper}: {line}  (none: {max(0.0, 1 - rates.sum()):.4f})")
            if table.standard_errors is not None:
                errors = table.standard_errors[depth, width - 1]
                click.echo("  ± " + " ".join(f"{error:.4f}" for error in errors))


def file_name(rule: str) -> str:
    """A rule's name as part of a file's."""
    return rule.replace("/", "-")
