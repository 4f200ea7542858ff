"""Text to distil on: the target's own answers to prompts, or text that is given.

A target that answers is scored on the way: its logits are there anyway.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from tqdm import tqdm

from experiments.distillation.store import (
    Sequence,
    read_shard,
    read_store,
    shard_files,
    shard_path,
    write_shard,
)

TEMPERATURES = (1.0, 0.8, 0.6, 0.0)  # prompts take them in turn: a draft meets all of them in use


PROMPTS = Path(__file__).with_name("prompts.txt")  # none of them is among the shipped prompts


def read_text(path: Path, tokenizer: Any, window: int) -> list[Sequence]:
    """Sequences of a store, of one npz in its format, or of plain text cut into windows of tokens.

    Plain text: a blank line ends nothing; every window of ``window`` tokens is one sequence whose
    first token is its prompt. Raises ValueError for a file without usable text.
    """
    is_store = path.is_dir() and bool(shard_files(path))
    if not path.is_file() and not is_store:
        raise ValueError(f"text file {str(path)!r} does not exist, nor is it a folder of shards")
    if is_store or path.suffix == ".npz":
        try:
            sequences = list(read_store(path)) if is_store else read_shard(path)
        except (KeyError, ValueError, OSError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"{str(path)!r} holds no tokens, lengths and prompt_lengths: {error}"
            ) from error
    else:
        ids = np.array(tokenizer(path.read_text(encoding="utf-8"))["input_ids"], np.int64)
        sequences = [Sequence(ids[i : i + window], 1) for i in range(0, len(ids), window)]
    usable = [s for s in sequences if s.prompt_length >= 1 and s.num_answers >= 1]
    if len(usable) < 2:
        raise ValueError(f"{str(path)!r} holds {len(usable)} usable sequences; at least 2 needed")
    return usable


def check_text(sequences: list[Sequence], vocab_size: int, max_positions: int) -> None:
    """ValueError for a token that the target does not know, or a sequence longer than it takes."""
    for number, s in enumerate(sequences):
        if s.tokens.min() < 0 or s.tokens.max() >= vocab_size:
            raise ValueError(
                f"sequence {number} holds token {int(s.tokens.max())}; the target knows "
                f"{vocab_size} tokens: is the text another tokenizer's?"
            )
        if len(s.tokens) > max_positions:
            raise ValueError(
                f"sequence {number} has {len(s.tokens)} tokens, more than the target's "
                f"{max_positions} positions"
            )


def read_prompts(path: Path | None) -> list[str]:
    """Prompts of a file, one a line. None: several hundred that come with this experiment, so that
    the set shipped with the product stays fresh for measuring."""
    path = path or PROMPTS
    if not path.is_file():
        raise ValueError(f"prompt file {str(path)!r} does not exist")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError(f"prompt file {str(path)!r} holds no prompt")
    return lines


def encode_prompts(prompts: list[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of each prompt, in the chat template where the tokenizer has one."""
    if getattr(tokenizer, "chat_template", None) is None:
        return [tokenizer(prompt)["input_ids"] for prompt in prompts]
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@torch.inference_mode()
def answer(
    target: Any,
    prompts: list[list[int]],
    temperature: float,
    max_new_tokens: int,
    stop_ids: list[int],
    top: int,
) -> list[Sequence]:
    """One answer to each prompt, in one left-padded batch; the stop token is kept. With the
    ``top`` most probable tokens at every answer position (at temperature 1)."""
    device = next(target.parameters()).device
    width, pad = max(map(len, prompts)), stop_ids[0] if stop_ids else 0
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    tops = []  # one of [b, top] a step

    def watch(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        tops.append(top_logprobs(logits, top))  # called before temperature is applied
        return logits

    draw = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    out = target.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=max_new_tokens,
        pad_token_id=pad,
        eos_token_id=stop_ids or None,
        logits_processor=[watch],
        **(draw if temperature > 0 else {"do_sample": False}),
    )
    ids = np.stack([step_ids for step_ids, _ in tops], 1)  # [b, steps, top]
    logprobs = np.stack([values for _, values in tops], 1)
    sequences = []
    for i, (prompt, row) in enumerate(zip(prompts, out[:, width:].tolist(), strict=True)):
        ends = [place for place, token in enumerate(row) if token in stop_ids]
        row = row[: ends[0] + 1] if ends else row
        known = ids[i, : len(row)], logprobs[i, : len(row)]
        sequences.append(Sequence(np.array(prompt + row, np.int64), len(prompt), *known))
    return sequences


def top_logprobs(logits: torch.Tensor, top: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log-probabilities) [A, top] of the most probable tokens of ``logits`` [A, V]."""
    logits = logits.float()
    values, ids = logits.topk(min(top, logits.shape[-1]), dim=-1)
    return ids.cpu().numpy(), (values - logits.logsumexp(-1, keepdim=True)).cpu().numpy()


def generate_store(
    target: Any,
    prompts: list[list[int]],
    folder: Path,
    *,
    samples: int = 1,
    max_new_tokens: int = 256,
    batch_size: int = 16,
    stop_ids: list[int],
    top: int = 64,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
) -> None:
    """Fill ``folder`` with the target's answers; shards already there are kept (resume).

    Each batch is one shard with a seed of its own, so a resumed run draws what an unbroken one
    would have. Every process ``rank`` of ``world`` takes its share of the shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (prompts[start : start + batch_size], sample)
        for sample in range(samples)
        for start in range(0, len(prompts), batch_size)
    ]
    mine = range(rank, len(jobs), world)
    for index in tqdm(mine, desc="text", unit="batch", disable=rank != 0):
        if shard_path(folder, index).exists():
            continue
        batch, sample = jobs[index]
        temperature = TEMPERATURES[(sample + index) % len(TEMPERATURES)]
        torch.manual_seed(seed * 1_000_003 + index)
        answers = answer(target, batch, temperature, max_new_tokens, stop_ids, top)
        write_shard(folder, index, answers)
