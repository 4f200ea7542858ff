"""Tokens per second next to what one would otherwise run, interleaved, on real prompts.

    python -m experiments.peers --out runs/peers.jsonl   # 18 prompts, greedy and T = 0.8

Peers: transformers' ``generate``; its assisted generation with the same draft; our
autoregressive decoder; our best chain; our best tree. Each prompt is run by all of them in turn,
``--repeats`` times over; every run is written to the file as it ends, and a second start goes on
where the first one stopped. Prompt processing is part of every time.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GenerationConfig

from experiments.transformers_draft import as_transformers
from sequoia import AutoregressiveDecoder, Pair, SamplingParams, SpeculativeDecoder, load_pair
from sequoia.pair import find_source
from sequoia.profiling import Journal, Text, shipped_prompts
from sequoia.profiling.tuning import about_pair, journal_settings


class Run(NamedTuple):
    """One run of the plan."""

    peer: str
    prompt: str
    temperature: float
    repeat: int

    @property
    def key(self) -> str:
        return " | ".join(map(str, self))


Peer = Callable[[list[int], SamplingParams], int]
"""Generates from prompt ids; returns the number of new tokens."""


def transformers_peer(model: Any, assistant: Any | None, pad: int | None) -> Peer:
    """transformers' generate, with an assistant model if one is given."""

    def run(ids: list[int], params: SamplingParams) -> int:
        torch.manual_seed(params.seed or 0)
        config = GenerationConfig(
            max_new_tokens=params.max_new_tokens,
            do_sample=not params.greedy,
            temperature=1.0 if params.greedy else params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            eos_token_id=model.generation_config.eos_token_id,
            pad_token_id=pad,
        )
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=config,
            **({} if assistant is None else {"assistant_model": assistant}),
        )
        return out.shape[1] - len(ids)

    return run


def our_peer(decoder: SpeculativeDecoder) -> Peer:
    """One of our decoders."""
    return lambda ids, params: len(decoder.generate(ids, params).token_ids)


def make_peers(
    pair: Pair, chain: str, tree: str, verifier: str, max_length: int
) -> dict[str, Peer]:
    """All peers by name, on the same target weights in the same dtype."""
    source = find_source(pair.target_name, None, "target")
    options = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    theirs = AutoModelForCausalLM.from_pretrained(
        source.path, dtype=pair.target.compute_dtype, **options
    )
    theirs.generation_config.eos_token_id = list(pair.stop_token_ids)
    pad = pair.stop_token_ids[0] if pair.stop_token_ids else None
    peers = {"transformers": transformers_peer(theirs, None, pad)}
    if pair.draft is not None:
        assistant = as_transformers(pair.draft)
        peers["transformers assisted"] = transformers_peer(theirs, assistant, pad)
    peers["autoregressive"] = our_peer(AutoregressiveDecoder(pair, max_length))
    for name, spec in (("chain", chain), ("tree", tree)):
        decoder = SpeculativeDecoder(pair, spec, verifier, max_length)
        peers[f"{name} {spec}"] = our_peer(decoder)
    return peers


def measure(
    peers: dict[str, Peer],
    prompts: Sequence[Text],
    temperatures: Sequence[float],
    repeats: int,
    tokens: int,
    journal: Journal,
) -> None:
    """Run what is not in the journal yet, peers taking turns on each prompt."""
    plan = [
        (run, prompt.ids)
        for repeat in range(repeats)
        for temperature in temperatures
        for prompt in prompts
        for peer in peers
        if (run := Run(peer, prompt.key, temperature, repeat)).key not in journal
    ]
    if plan:
        (first, ids), *_ = plan
        for peer in peers.values():  # warm up
            peer(ids, SamplingParams(max_new_tokens=4, temperature=first.temperature))
    for run, ids in tqdm(plan, unit="run"):
        params = SamplingParams(max_new_tokens=tokens, temperature=run.temperature, seed=run.repeat)
        start = time.perf_counter()
        new = peers[run.peer](ids, params)
        journal.add(run.key, [*run, new, time.perf_counter() - start])


def report(runs: Iterable[Sequence[Any]]) -> dict[str, dict[str, float]]:
    """Median tokens/s per peer and temperature (median over repeats, then over prompts)."""
    speeds: dict[tuple[float, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for peer, prompt, temperature, _, new_tokens, seconds in runs:
        speeds[temperature, peer][prompt].append(new_tokens / seconds)
    table: dict[str, dict[str, float]] = defaultdict(dict)
    for (temperature, peer), prompts in speeds.items():
        per_prompt = [statistics.median(values) for values in prompts.values()]
        table[f"T = {temperature:g}"][peer] = round(statistics.median(per_prompt), 2)
    return dict(table)


def show(table: dict[str, dict[str, float]]) -> None:
    """The table as Markdown, with ratios to each of the three baselines."""
    bases = ("transformers", "transformers assisted", "autoregressive")
    for setting, speeds in table.items():
        click.echo(f"\n{setting} | tokens/s | " + " | ".join(f"x {base}" for base in bases))
        click.echo("|".join(["---"] * (2 + len(bases))))
        for peer, speed in speeds.items():
            ratios = [f"{speed / speeds[base]:.2f}" if base in speeds else "" for base in bases]
            click.echo(f"{peer} | {speed:.1f} | " + " | ".join(ratios))


@click.command(help=__doc__)
@click.option("--target", default="embedded", show_default=True)
@click.option("--draft", default="embedded", show_default=True)
@click.option("--chain", default="chain:3", show_default=True, help="Our best chain.")
@click.option("--tree", default="auto", show_default=True, help="Our best tree.")
@click.option("--verifier", default="rrs_wor", show_default=True)
@click.option("--temperature", "temperatures", multiple=True, type=float, default=[0.0, 0.8])
@click.option("--prompts", default=18, show_default=True, help="Shipped prompts, kinds in turn.")
@click.option("--max-new-tokens", default=128, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/peers.jsonl"))
def main(**o: Any) -> None:
    """See the module's text."""
    torch.set_num_threads(o["threads"])
    warnings.filterwarnings("ignore", module="transformers")
    max_length = 1024
    pair = load_pair(o["target"], o["draft"], dtype=o["dtype"], max_length=max_length)
    peers = make_peers(pair, o["chain"], o["tree"], o["verifier"], max_length)
    params = SamplingParams(max_new_tokens=o["max_new_tokens"])
    prompts = shipped_prompts(pair, o["prompts"], max_length - params.max_new_tokens)
    journal = Journal(o["out"], journal_settings(pair, params, peers=list(peers)))
    measure(peers, prompts, o["temperatures"], o["repeats"], params.max_new_tokens, journal)
    table = report(journal.values())
    show(table)
    click.echo(json.dumps({"tokens_per_second": table, "provenance": about_pair(pair, params)}))


if __name__ == "__main__":
    main()
