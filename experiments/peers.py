"""Tokens per second next to what one would otherwise run, interleaved, on real prompts.

    python -m experiments.peers --out runs/peers.jsonl            # 18 prompts, greedy and T = 0.8
    python -m experiments.peers --out runs/peers.jsonl --report   # the table of what is there

Peers: transformers' ``generate``; its assisted generation with the same draft; our
autoregressive decoder; our best chain; our best tree. Each prompt is run by all of them in turn,
``--repeats`` times over; every run is one line of the file, written as it ends, and a second
start goes on where the first one stopped. Prompt processing is part of every time.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GenerationConfig

from experiments.transformers_draft import as_transformers
from sequoia import AutoregressiveDecoder, Pair, SamplingParams, SpeculativeDecoder, load_pair
from sequoia.pair import find_source
from sequoia.prompts import KINDS, Prompt, load
from sequoia.provenance import collect

Peer = Callable[[list[int], SamplingParams], int]
"""Generates from prompt ids; returns the number of new tokens."""


def some_prompts(per_kind: int) -> list[Prompt]:
    """The first few shipped prompts of each kind, kinds taking turns."""
    by_kind = [load(kind)[:per_kind] for kind in KINDS]
    return [prompt for row in zip(*by_kind, strict=True) for prompt in row]


def chat_ids(pair: Pair, prompt: Prompt) -> list[int]:
    """The prompt as one user message in the chat template."""
    text = pair.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True
    )
    return pair.tokenizer(text, add_special_tokens=False)["input_ids"]


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


def read(path: Path) -> list[dict[str, Any]]:
    """The finished runs; a last line cut short by a kill is dropped."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [run for run in runs if "peer" in run]


def measure(
    peers: dict[str, Peer],
    prompts: Iterable[tuple[str, list[int]]],
    temperatures: Iterable[float],
    repeats: int,
    tokens: int,
    path: Path,
    facts: dict[str, Any],
) -> None:
    """Run what is not in the file yet, peers taking turns on each prompt."""
    done = {(r["peer"], r["prompt"], r["temperature"], r["repeat"]) for r in read(path)}
    plan = [
        (repeat, temperature, name, ids, peer)
        for repeat in range(repeats)
        for temperature in temperatures
        for name, ids in prompts
        for peer in peers
        if (peer, name, temperature, repeat) not in done
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        if plan:
            print(file=out)  # after a kill the last line may have no end
            print(json.dumps({"provenance": collect(**facts)}), file=out, flush=True)
            _, temperature, _, ids, _ = plan[0]
            for peer in peers.values():  # warm up
                peer(ids, SamplingParams(max_new_tokens=4, temperature=temperature))
        for repeat, temperature, name, ids, peer in tqdm(plan, unit="run"):
            params = SamplingParams(max_new_tokens=tokens, temperature=temperature, seed=repeat)
            start = time.perf_counter()
            new = peers[peer](ids, params)
            seconds = time.perf_counter() - start
            run = {
                "peer": peer,
                "prompt": name,
                "temperature": temperature,
                "repeat": repeat,
                "new_tokens": new,
                "seconds": round(seconds, 4),
            }
            print(json.dumps(run), file=out, flush=True)


def report(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median tokens/s per peer and temperature (median over repeats, then over prompts)."""
    speeds: dict[tuple[float, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        cell = speeds[run["temperature"], run["peer"]]
        cell[run["prompt"]].append(run["new_tokens"] / run["seconds"])
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
@click.option("--prompts-per-kind", default=3, show_default=True)
@click.option("--max-new-tokens", default=128, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/peers.jsonl"))
@click.option("--report", "report_only", is_flag=True, help="Only print the table of the file.")
def main(**o: Any) -> None:
    """See the module's text."""
    if not o["report_only"]:
        torch.set_num_threads(o["threads"])
        warnings.filterwarnings("ignore", module="transformers")
        max_length = 1024
        pair = load_pair(o["target"], o["draft"], dtype=o["dtype"], max_length=max_length)
        peers = make_peers(pair, o["chain"], o["tree"], o["verifier"], max_length)
        prompts = [(p.id, chat_ids(pair, p)) for p in some_prompts(o["prompts_per_kind"])]
        facts = {"options": {name: str(value) for name, value in o.items()}}
        measure(
            peers,
            prompts,
            o["temperatures"],
            o["repeats"],
            o["max_new_tokens"],
            o["out"],
            facts,
        )
    table = report(read(o["out"]))
    show(table)
    click.echo(json.dumps(table))


if __name__ == "__main__":
    main()
