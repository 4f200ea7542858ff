"""Tokens per step of every verifier on one tree, with standard errors over the prompts.

    python -m experiments.compare_verifiers --tree kary:2^4 --out runs/verifiers.jsonl

A count of steps, not a timing: it needs no quiet machine. Every generation is written as it ends,
and a second start with the same options goes on where the first one stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from tqdm import tqdm

import verifiers
from sequoia import SamplingParams, SpeculativeDecoder, load_pair
from sequoia.profiling import Journal, Text, shipped_prompts
from sequoia.profiling.ratios import ratio
from sequoia.profiling.tuning import about_pair, journal_settings


def count(
    decoder: SpeculativeDecoder, prompts: Sequence[Text], params: SamplingParams, journal: Journal
) -> list[tuple[int, int]]:
    """(new tokens, steps) of each prompt."""
    counts = []
    for prompt in prompts:
        key = f"{decoder.verifier.name} {params.temperature} {prompt.key}"
        if key not in journal:
            output = decoder.generate(prompt.ids, params)
            journal.add(key, [len(output.token_ids), output.num_steps])
        counts.append(tuple(journal[key]))
    return counts


@click.command(help=__doc__)
@click.option("--target", default="embedded", show_default=True)
@click.option("--draft", default="embedded", show_default=True)
@click.option("--tree", default="kary:2^4", show_default=True)
@click.option("--verifier", "names", multiple=True, default=list(verifiers.NAMES[1:]))
@click.option("--temperature", "temperatures", multiple=True, type=float, default=[0.6, 1.0])
@click.option("--prompts", default=12, show_default=True)
@click.option("--max-new-tokens", default=64, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/verifiers.jsonl"))
def main(**o: Any) -> None:
    """See the module's text."""
    base = SamplingParams(max_new_tokens=o["max_new_tokens"], seed=0)
    pair = load_pair(o["target"], o["draft"], max_length=1024)
    prompts = shipped_prompts(pair, o["prompts"], 1024 - base.max_new_tokens)
    journal = Journal(o["out"], journal_settings(pair, base, tree=o["tree"]))
    decoders = [SpeculativeDecoder(pair, o["tree"], name) for name in o["names"]]
    table: dict[str, dict[str, list[float]]] = {}
    for temperature in o["temperatures"]:
        params = replace(base, temperature=temperature)
        cells = table[f"T = {temperature:g}"] = {}
        for decoder in tqdm(decoders, desc=f"T = {temperature:g}"):
            counts = np.array(count(decoder, prompts, params, journal), dtype=float)
            rate, error = ratio(*counts.T)
            cells[decoder.verifier.name] = [round(float(rate), 3), round(float(error or 0), 3)]
    for name in table[f"T = {o['temperatures'][0]:g}"]:
        cells_of = "  ".join(f"{row[name][0]:.3f} ± {row[name][1]:.3f}" for row in table.values())
        click.echo(f"{name:<20} {cells_of}")
    click.echo(json.dumps({"tokens_per_step": table, "provenance": about_pair(pair, base)}))


if __name__ == "__main__":
    main()
