"""Measured speed of a tree against plain decoding, the two taking turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sequoia.baseline import AutoregressiveDecoder
from sequoia.config import SamplingParams
from sequoia.decoder import SpeculativeDecoder
from sequoia.profiling.journal import Journal
from sequoia.profiling.ratios import ratio
from sequoia.profiling.texts import Progress, Text, quiet


def measure_speed(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Text],
    params: SamplingParams,
    journal: Journal,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Speed-up and tokens per step, each with its standard error over the prompts.

    Plain decoding generates as many tokens as the tree did for the same prompt, right after it.
    Times are from the end of the first step on: the prompt's pass is the same for both.
    """
    plain = AutoregressiveDecoder(decoder.pair, decoder.max_length)
    warm = dataclasses.replace(params, max_new_tokens=8, seed=0)
    warmed = False
    for prompt in progress(prompts):
        key = f"speed {prompt.key}"
        if key in journal:
            continue
        if not warmed:
            for each in (decoder, plain):
                each.generate(prompt.ids, warm)
            warmed = True
        journal.add(key, _compare(decoder, plain, prompt, params))
    return summary([journal[f"speed {prompt.key}"] for prompt in prompts])


def summary(records: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Totals over the prompts; seconds per token are weighted by the tokens."""

    def column(name: str) -> np.ndarray:
        return np.array([record[name] for record in records], dtype=float)

    per_step, error = ratio(column("tokens"), column("steps"))
    # Speed-up = plain seconds / tree seconds, for as many tokens each.
    tree = column("tree_seconds") / column("tree_tokens") * column("tokens")
    plain = column("plain_seconds") / column("plain_tokens") * column("tokens")
    speed_up, speed_up_error = ratio(plain, tree)
    return {
        "prompts": len(records),
        "tokens": int(column("tokens").sum()),
        "tokens_per_step": float(per_step),
        "tokens_per_step_error": None if error is None else float(error),
        "speed_up": float(speed_up),
        "speed_up_error": None if speed_up_error is None else float(speed_up_error),
        "tokens_per_second": float(column("tokens").sum() / tree.sum()),
        "plain_tokens_per_second": float(column("tokens").sum() / plain.sum()),
        "step_ms": float(1000 * tree.sum() / column("steps").sum()),
        "plain_step_ms": float(1000 * plain.sum() / column("tokens").sum()),
    }


def _compare(
    decoder: SpeculativeDecoder,
    plain: SpeculativeDecoder,
    prompt: Text,
    params: SamplingParams,
) -> dict[str, float]:
    steps, tokens, tree_seconds, tree_tokens = _timed(decoder, prompt, params)
    same = dataclasses.replace(params, max_new_tokens=tokens, stop_token_ids=(), stop=())
    _, _, plain_seconds, plain_tokens = _timed(plain, prompt, same)
    return {
        "steps": steps,
        "tokens": tokens,
        "tree_seconds": tree_seconds,
        "tree_tokens": tree_tokens,
        "plain_seconds": plain_seconds,
        "plain_tokens": plain_tokens,
    }


def _timed(
    decoder: SpeculativeDecoder, prompt: Text, params: SamplingParams
) -> tuple[int, int, float, int]:
    """Steps, tokens, and the seconds and tokens after the first step (of all, if it is alone)."""
    begin = time.perf_counter()
    first = 0.0
    counts = []
    for kept in decoder.stream(prompt.ids, params):
        counts.append(len(kept))
        first = first or time.perf_counter()
    end = time.perf_counter()
    if len(counts) == 1:
        return 1, counts[0], end - begin, counts[0]
    return len(counts), sum(counts), end - first, sum(counts[1:])
