"""Context-adaptive trees against the best static tree of the same budget of nodes.

    python -m experiments.compare_trees --acceptance tuned/acceptance-rrs_wor.json \
        --draft DRAFT --sizes 8 16 32 --out runs/trees.json

Prints tokens per step with standard errors over the prompts, and writes them as JSON. For a static
tree the value that its table predicts stands beside. The adaptive trees are all those with up to
four children per expanded node and up to four expanded nodes per level that nearly fill the budget;
the best of them is the best of several, so compare it with its standard error in mind. Continues
where an earlier run with the same options stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sequoia import SamplingParams, SpeculativeDecoder, load_pair
from sequoia.profiling import Journal, Text, shipped_prompts
from sequoia.profiling.ratios import ratio
from sequoia.profiling.tuning import about_pair, journal_settings
from tree_builder import AcceptanceTable, TreeTopology, best_tree
from tree_builder.adaptive import AdaptiveTree, Tree

FILLED = 0.8  # share of the budget that an adaptive tree must use to be compared
MAX_LEVELS = 12


def adaptive_trees(size: int, prune: bool) -> Iterator[AdaptiveTree]:
    """Adaptive trees of nearly ``size`` nodes. With ``prune`` (rules that take any drafts) also
    those that draw about twice as many nodes and keep ``size``."""
    for children in range(1, 5):
        for width in range(1, 5 if children > 1 else 2):
            trees = [AdaptiveTree(children, width, levels) for levels in range(2, MAX_LEVELS + 1)]
            fitting = [tree for tree in trees if FILLED * size <= tree.size <= size]
            yield from fitting[-1:]
            if prune:
                larger = [tree for tree in trees if 1.5 * size <= tree.size <= 2.5 * size]
                for tree in larger[-1:]:
                    yield AdaptiveTree(children, width, tree.num_levels, size)


def compare(
    pair: Any,
    prompts: Sequence[Text],
    params: SamplingParams,
    verifier: str,
    trees: dict[str, Tree],
    journal: Journal,
) -> dict[str, dict[str, Any]]:
    """Tokens per step of every tree, by name."""
    longest = max(len(prompt.ids) for prompt in prompts) + params.max_new_tokens
    found = {}
    for name, tree in trees.items():
        decoder = SpeculativeDecoder(pair, tree, verifier, max_length=longest)
        records = []
        for prompt in tqdm(prompts, desc=name, disable=None):
            key = f"{name} {prompt.key}"
            if key not in journal:
                output = decoder.generate(prompt.ids, params)
                journal.add(key, [len(output.token_ids), output.num_steps])
            records.append(journal[key])
        tokens, steps = np.array(records, dtype=float).T
        per_step, error = ratio(tokens, steps)
        found[name] = {
            "nodes": tree.size,
            "levels": tree.num_levels,
            "tokens_per_step": float(per_step),
            "standard_error": None if error is None else float(error),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    table = AcceptanceTable.load(options.acceptance)
    pair = load_pair(options.target, options.draft)
    params = SamplingParams(
        max_new_tokens=options.new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
    )
    prompts = shipped_prompts(pair, options.prompts, pair.max_length - options.new_tokens)
    settings = journal_settings(pair, params, verifier=options.verifier)
    journal = Journal(options.out.with_suffix(".jsonl"), settings)
    report: dict[str, Any] = {"verifier": options.verifier, "prompts": len(prompts), "sizes": {}}
    for size in options.sizes:
        static, expected = best_tree(table, size, MAX_LEVELS)
        trees: dict[str, Tree] = {f"static {digest(static)}": static}
        prune = options.verifier == "target_match"
        trees |= {str(tree): tree for tree in adaptive_trees(size, prune)}
        found = compare(pair, prompts, params, options.verifier, trees, journal)
        next(iter(found.values()))["predicted"] = expected
        report["sizes"][size] = found
        print(text(size, found))
    report["provenance"] = about_pair(pair, params, acceptance=dict(table.provenance))
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(gains(report["sizes"])))


def digest(tree: TreeTopology) -> str:
    """A name of a static tree: nodes in each level, and a checksum of its parents."""
    levels = "-".join(str(len(level)) for level in tree.levels)
    return f"{levels} {zlib.crc32(repr(tree.parents).encode()):08x}"


def gains(sizes: dict[int, dict[str, dict[str, Any]]]) -> dict[int, dict[str, float]]:
    """By budget: tokens per step of the static tree, of the best and the median adaptive one."""
    summary = {}
    for size, found in sizes.items():
        static, *adaptive = [each["tokens_per_step"] for each in found.values()]
        summary[size] = {"static": static}
        if adaptive:
            middle = statistics.median(adaptive)
            summary[size] |= {"best adaptive": max(adaptive), "median adaptive": middle}
    return summary


def text(size: int, found: dict[str, dict[str, Any]]) -> str:
    lines = [f"{size} nodes{'':<23} nodes  levels  tokens per step"]
    for name, each in sorted(found.items(), key=lambda item: -item[1]["tokens_per_step"]):
        error = each["standard_error"]
        spread = "" if error is None else f" ± {error:.3f}"
        predicted = f"  (predicted {each['predicted']:.3f})" if "predicted" in each else ""
        lines.append(
            f"  {name:<30} {each['nodes']:>4}  {each['levels']:>6}  "
            f"{each['tokens_per_step']:.3f}{spread}{predicted}"
        )
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--acceptance", type=Path, required=True)
    parser.add_argument("--target", default="embedded")
    parser.add_argument("--draft", default="embedded")
    parser.add_argument("--verifier", default="rrs_wor")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if min(options.sizes) < 2:
        parser.error(f"--sizes: a tree that drafts has at least 2 nodes, got {min(options.sizes)}")
    return options


if __name__ == "__main__":
    main()
