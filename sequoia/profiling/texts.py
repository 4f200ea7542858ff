"""What acceptance is measured on: the target's own answers, or text from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sequoia.baseline import AutoregressiveDecoder
from sequoia.config import SamplingParams
from sequoia.inputs import encode_prompt
from sequoia.pair import Pair
from sequoia.profiling.journal import Journal
from sequoia.prompts import load

Progress = Callable[[Sequence], Sequence]
"""Wraps what is iterated over: tqdm with its options filled in, or ``quiet``."""


def quiet(items: Sequence) -> Sequence:
    """No progress bar."""
    return items


class Text(NamedTuple):
    """Token ids; those from ``start`` on are the ones that are predicted."""

    key: str
    ids: list[int]
    start: int


def shipped_prompts(
    pair: Pair, number: int, longest: int | None = None, kind: str | None = None
) -> list[Text]:
    """The first ``number`` shipped prompts of at most ``longest`` tokens, all kinds in turn, in
    the chat template if there is one. ``start`` is the end of the prompt.

    ValueError for a number below 1, or when no prompt is short enough."""
    if number < 1:
        raise ValueError(f"at least 1 prompt is needed, got {number}")
    texts: list[Text] = []
    for prompt in sorted(load(kind), key=lambda prompt: prompt.id.rpartition("-")[2]):
        ids = _encode(pair, prompt.text)
        if longest is None or len(ids) <= longest:
            texts.append(Text(prompt.id, ids, len(ids)))
        if len(texts) == number:
            break
    if not texts:
        raise ValueError(f"no shipped prompt has at most {longest} tokens: ask for less text")
    return texts


def _encode(pair: Pair, message: str) -> list[int]:
    tokenizer = pair.tokenizer
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": message}]
        message = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return list(tokenizer(message, add_special_tokens=False)["input_ids"])
    return encode_prompt(message, pair, pair.max_length)


def file_texts(pair: Pair, path: str | Path, length: int, number: int) -> list[Text]:
    """Pieces of ``length`` tokens of a text file, at most ``number``; all but the first token
    of a piece are predicted. ValueError when the file has no two tokens or is not UTF-8."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    if pair.tokenizer is None:
        raise ValueError("this pair has no tokenizer: text cannot be encoded")
    ids = list(pair.tokenizer(text)["input_ids"])
    pieces = [ids[first : first + length] for first in range(0, len(ids), length)]
    # Named by content: a journal must not take the piece of another text for this one.
    texts = [
        Text(hashlib.sha256(repr(piece).encode()).hexdigest()[:16], piece, 1)
        for piece in pieces[:number]
        if len(piece) >= 2
    ]
    if not texts:
        raise ValueError(f"{path}: {len(ids)} tokens, at least 2 are needed")
    return texts


def own_texts(
    pair: Pair,
    prompts: Sequence[Text],
    params: SamplingParams,
    journal: Journal,
    progress: Progress = quiet,
) -> list[Text]:
    """Each prompt with the target's own answer to it; an answer is generated once per journal."""
    longest = max(len(prompt.ids) for prompt in prompts) + params.max_new_tokens
    decoder = AutoregressiveDecoder(pair, min(longest, pair.max_length))
    texts = []
    for prompt in progress(prompts):
        key = f"answer {prompt.key}"
        answer = (
            journal[key]
            if key in journal
            else journal.add(key, decoder.generate(prompt.ids, params).token_ids)
        )
        texts.append(Text(prompt.key, prompt.ids + answer, len(prompt.ids)))
    return texts
