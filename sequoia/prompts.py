"""The prompts that ship with the product: what demos, tuning and experiments run on by default.

Six kinds, because acceptance depends strongly on the text: code and translation are far more
predictable than stories. All prompts were written for this product.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

KINDS = ("chat", "story", "summary", "code", "maths", "translation")


@dataclass(frozen=True)
class Prompt:
    """One user message, to be wrapped in the target's chat template where it has one."""

    id: str
    kind: str
    text: str


def load(kind: str | None = None) -> list[Prompt]:
    """Return the shipped prompts in a fixed order, all of them or those of one of :data:`KINDS`.

    Raises ``ValueError`` for a kind that does not exist.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind of prompt {kind!r}; choose one of {', '.join(KINDS)}")
    path = files("sequoia") / "data" / "prompts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    prompts = [Prompt(**json.loads(line)) for line in lines]
    return [prompt for prompt in prompts if kind in (None, prompt.kind)]
