"""``sequoia generate``: one prompt, the text as it comes, then what it took."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from sequoia.cli import EXIT_INTERRUPT
from sequoia.cli.options import (
    ModelOptions,
    SamplingOptions,
    TreeOptions,
    model_options,
    sampling_options,
    tree_options,
)

if TYPE_CHECKING:
    from sequoia.cli.measure import Timed
    from sequoia.config import SamplingParams
    from sequoia.decoder import SpeculativeDecoder
    from sequoia.pair import Pair


@click.command(short_help="Generate text from one prompt, streaming it.")
@click.option("--prompt", metavar="TEXT", help="The prompt. Without --prompt and --file: stdin.")
@click.option("--file", type=click.File(encoding="utf-8"), help="Read the prompt from a file.")
@click.option("--chat", is_flag=True, help="Wrap the prompt in the target's chat template.")
@sampling_options
@tree_options
@model_options
@click.option(
    "--compare",
    is_flag=True,
    help="Also decode as many tokens autoregressively, and report the speed-up.",
)
@click.option(
    "--explain-divergence",
    is_flag=True,
    help="With --compare at temperature 0: where the texts part, and how close the logits were.",
)
@click.option("--json", "as_json", is_flag=True, help="End stdout with one line of JSON.")
@click.pass_context
def generate(
    ctx: click.Context,
    prompt: str | None,
    file: Any,
    chat: bool,
    sampling: SamplingOptions,
    trees: TreeOptions,
    models: ModelOptions,
    compare: bool,
    explain_divergence: bool,
    as_json: bool,
) -> None:
    """Generate from one prompt. Text streams to stdout, the closing table goes to stderr.

    \b
    Examples:
      sequoia generate --chat --prompt "Why is the sky blue?" --temperature 0 --compare
      sequoia generate --file story.txt --max-new-tokens 400 --temperature 0.7 --top-p 0.9 --seed 1
      echo "def fibonacci(n):" | sequoia generate --tree chains:4x4 --json | tail -n 1
      sequoia generate --target ./Llama-3.1-8B --draft ./Llama-3.2-1B --dtype bfloat16 --prompt Hi
    """
    text = _read_prompt(prompt, file)
    params = sampling.params()
    if compare and models.draft == "none":
        raise ValueError("--compare needs a draft model: leave out --draft none")
    if explain_divergence and not (compare and params.greedy):
        raise ValueError("--explain-divergence needs --compare and --temperature 0")

    from sequoia.cli.measure import baseline_params, numbers, table, timed
    from sequoia.cli.session import load, make_decoder, note, prompt_ids

    pair = load(models, trees, params, text, chat)
    ids = prompt_ids(pair, text, chat)
    length = min(pair.max_length, len(ids) + params.max_new_tokens)
    decoder = make_decoder(pair, trees, models, length)
    plain = _baseline(pair, decoder, models, ids, params) if compare else None

    run = timed(decoder, ids, params, _show)
    click.echo()
    interrupted = run.output.finish_reason == "interrupt"
    baseline = None
    if plain is not None and not interrupted:
        baseline = timed(plain, ids, baseline_params(params, run))
        interrupted = baseline.output.finish_reason == "interrupt"
        baseline = None if interrupted else baseline

    figures = numbers(run, baseline, params.greedy)
    note("\n" + table(figures, _facts(pair, run, figures, params)))
    if explain_divergence and plain is not None and baseline is not None:
        note(_explanation(pair, plain, ids, run, baseline))
    if figures.get("speedup_vs_autoregressive", 1.0) < 1.0:
        note("Plain decoding was faster here: --draft none switches speculation off.")
    if as_json:
        click.echo(json.dumps(_record(pair, decoder, run, figures, params), ensure_ascii=False))
    if interrupted:
        ctx.exit(EXIT_INTERRUPT)


def _read_prompt(prompt: str | None, file: Any) -> str:
    if prompt is not None and file is not None:
        raise ValueError("--prompt and --file were both given: choose one")
    if prompt is None and file is None and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt TEXT, --file FILE, or pipe text into stdin")
    try:
        text = (file or sys.stdin).read().removesuffix("\n") if prompt is None else prompt
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt is not UTF-8 text: {error}") from error
    if not text.strip():
        raise ValueError("the prompt is empty: give at least one word")
    return text


def _show(piece: str) -> None:
    click.echo(piece, nl=False)


def _baseline(
    pair: Pair,
    decoder: SpeculativeDecoder,
    models: ModelOptions,
    ids: list[int],
    params: SamplingParams,
) -> SpeculativeDecoder:
    """The autoregressive decoder, after both have run a few tokens so that neither starts cold."""
    from sequoia import AutoregressiveDecoder
    from sequoia.cli.measure import timed

    plain = AutoregressiveDecoder(pair, decoder.max_length, **models.engine)
    few = min(2 * decoder.tree.num_levels, params.max_new_tokens)
    for each in (decoder, plain):
        timed(each, ids, dataclasses.replace(params, max_new_tokens=few, seed=0))
    return plain


def _facts(
    pair: Pair, run: Timed, figures: dict[str, Any], params: SamplingParams
) -> list[tuple[str, str]]:
    from sequoia.cli.info import models_line

    facts = [("tree", run.output.tree), ("verifier", run.output.verifier)]
    if "same_as_autoregressive" in figures:
        same = "yes" if figures["same_as_autoregressive"] else "no"
        facts.insert(0, ("same text as autoregressive", same))
    facts.append(("models", models_line(pair)))
    return facts if params.greedy else [*facts, ("seed", str(run.output.seed))]


def _explanation(
    pair: Pair, plain: SpeculativeDecoder, ids: list[int], run: Timed, baseline: Timed
) -> str:
    from sequoia.divergence import find_divergence

    found = find_divergence(plain, ids, run.output.token_ids, baseline.output.token_ids)
    return "the texts do not differ" if found is None else found.explain(pair.tokenizer)


def _record(
    pair: Pair,
    decoder: SpeculativeDecoder,
    run: Timed,
    figures: dict[str, Any],
    params: SamplingParams,
) -> dict[str, Any]:
    from sequoia.provenance import collect

    return {
        **figures,
        "text": run.output.text,
        "token_ids": run.output.token_ids,
        "sampling": dataclasses.asdict(params),
        **collect(
            target=pair.target_name,
            draft=pair.draft_name or None,
            device=decoder.device,
            dtype=pair.target.compute_dtype,
            seed=run.output.seed,
            tree=run.output.tree,
            tree_nodes=decoder.tree.size,
            verifier=run.output.verifier,
        ),
    }
