"""Text of the target and its top log-probabilities, kept in small files so that work can resume.

A *store* is a folder of shards ``shard-00000.npz``. Each shard is complete when its name exists (it
is written beside and renamed), so a killed run loses at most the shard it was working on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Sequence:
    """One text: prompt and answer.

    ``tokens`` [n] int64, ``prompt_length`` tokens of it are the prompt (at least 1).
    ``top_ids`` [a, K] int64 and ``top_logprobs`` [a, K] float32, where known: row ``i`` belongs to
    position ``prompt_length - 1 + i``, the position that predicts answer token ``i``; ``a`` is the
    number of answer tokens. Log-probabilities are the target's at temperature 1 over its whole
    vocabulary, so the log-sum-exp is already taken off.
    """

    tokens: np.ndarray
    prompt_length: int
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None

    @property
    def num_answers(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def place(self) -> float:
        """A number in [0, 1) made of the prompt alone: the same in every run, and for all answers
        to one prompt. (A prompt of one token is the start of a piece of text, told by all of it.)
        """
        length = self.prompt_length if self.prompt_length > 1 else len(self.tokens)
        digest = hashlib.sha256(self.tokens[:length].astype(np.int64).tobytes()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def pad_tokens(sequences: list[Sequence], pad: int = 0) -> torch.Tensor:
    """A rectangle [b, longest] (long), padded on the right: causal models need no mask for it."""
    longest = max(len(s.tokens) for s in sequences)
    out = torch.full((len(sequences), longest), pad, dtype=torch.long)
    for row, s in enumerate(sequences):
        out[row, : len(s.tokens)] = torch.from_numpy(s.tokens.astype(np.int64))
    return out


def answer_positions(sequences: list[Sequence], width: int) -> torch.Tensor:
    """Flat indices [A] into a [b, width] rectangle of the positions that predict answer tokens."""
    parts = [
        np.arange(s.prompt_length - 1, len(s.tokens) - 1) + row * width
        for row, s in enumerate(sequences)
    ]
    return torch.from_numpy(np.concatenate(parts))


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.npz"


def write_shard(folder: Path, index: int, sequences: list[Sequence]) -> None:
    """Write one shard so that its name appears only when it is whole."""
    arrays: dict[str, Any] = {
        "tokens": np.concatenate([s.tokens for s in sequences]).astype(np.uint32),
        "lengths": np.array([len(s.tokens) for s in sequences], np.int32),
        "prompt_lengths": np.array([s.prompt_length for s in sequences], np.int32),
    }
    if all(s.top_ids is not None for s in sequences):
        arrays["top_ids"] = np.concatenate([s.top_ids for s in sequences]).astype(np.uint32)
        arrays["top_logprobs"] = np.concatenate([s.top_logprobs for s in sequences]).astype(
            np.float16
        )
    part = folder / f".shard-{index:05d}.part.npz"
    np.savez(part, **arrays)
    os.replace(part, shard_path(folder, index))


def read_shard(path: Path) -> list[Sequence]:
    """The sequences of one file: a shard, or any npz in the format of ``distill_text.npz``."""
    with np.load(path) as data:
        tokens = data["tokens"].astype(np.int64)
        lengths, prompts = data["lengths"], data["prompt_lengths"]
        ids = data.get("top_ids")
        logprobs = data.get("top_logprobs")
    answers = int(np.sum(lengths) - np.sum(prompts))
    if (ids is None) != (logprobs is None) or (ids is not None and len(ids) != answers):
        raise ValueError(f"top_ids and top_logprobs must both have a row for each of {answers}")
    out, start, row = [], 0, 0
    for length, prompt in zip(lengths.tolist(), prompts.tolist(), strict=True):
        answers = length - prompt
        out.append(
            Sequence(
                tokens[start : start + length],
                prompt,
                None if ids is None else ids[row : row + answers],
                None if logprobs is None else logprobs[row : row + answers],
            )
        )
        start, row = start + length, row + answers
    return out


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.npz"))


def read_store(folder: Path) -> Iterator[Sequence]:
    for path in shard_files(folder):
        yield from read_shard(path)
