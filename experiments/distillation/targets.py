"""Run the target once over the text and keep its top log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.distillation.store import (
    Sequence,
    answer_positions,
    pad_tokens,
    read_shard,
    shard_path,
    write_shard,
)
from experiments.distillation.text import top_logprobs


@torch.inference_mode()
def score(target: Any, sequences: list[Sequence], top: int) -> list[Sequence]:
    """The sequences with the target's ``top`` most probable tokens at every answer position.

    One right-padded pass; the head runs on answer positions only (it is a fifth of a small model).
    """
    device = next(target.parameters()).device
    tokens = pad_tokens(sequences)
    hidden = target.model(input_ids=tokens.to(device), use_cache=False).last_hidden_state
    rows = hidden.flatten(0, 1)[answer_positions(sequences, tokens.shape[1]).to(device)]
    ids, values = top_logprobs(target.get_output_embeddings()(rows), top)  # of [A, V]
    out, row = [], 0
    for s in sequences:
        end = row + s.num_answers
        out.append(replace(s, top_ids=ids[row:end], top_logprobs=values[row:end]))
        row = end
    return out


def score_store(
    target: Any,
    sequences: list[Sequence],
    folder: Path,
    top: int = 64,
    shard_size: int = 32,
    batch_size: int = 4,
    rank: int = 0,
    world: int = 1,
) -> list[Path]:
    """Fill ``folder`` with scored shards; shards already there are kept (resume), and so are
    scores that a sequence brings along.

    Returns the shards that hold these sequences, every process's: ``folder`` may hold more, of
    another run. Raises ValueError when they hold other text or another ``top`` than asked for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts = list(range(0, len(sequences), shard_size))
    for index in tqdm(range(rank, len(starts), world), desc="target", disable=rank != 0):
        chunk = sequences[starts[index] : starts[index] + shard_size]
        chunk = sorted(chunk, key=lambda s: len(s.tokens))
        path = shard_path(folder, index)
        if path.exists():
            _check_same(read_shard(path), chunk, top, path)
            continue
        scored = [s for s in chunk if has_scores(s, top)]
        fresh = [s for s in chunk if not has_scores(s, top)]
        for first in range(0, len(fresh), batch_size):
            scored += score(target, fresh[first : first + batch_size], top)
        scored.sort(key=lambda s: len(s.tokens))
        write_shard(folder, index, scored)
    return [shard_path(folder, index) for index in range(len(starts))]


def has_scores(sequence: Sequence, top: int) -> bool:
    """The sequence knows the target's ``top`` most probable tokens."""
    return sequence.top_ids is not None and sequence.top_ids.shape[1] == top


def _check_same(stored: list[Sequence], wanted: list[Sequence], top: int, path: Path) -> None:
    same = len(stored) == len(wanted) and all(
        a.prompt_length == b.prompt_length
        and a.tokens.tolist() == b.tokens.tolist()
        and has_scores(a, top)
        for a, b in zip(stored, wanted, strict=True)
    )
    if not same:
        raise ValueError(
            f"{str(path)!r} holds other text or another number of top tokens than asked for; "
            "use another work folder"
        )
