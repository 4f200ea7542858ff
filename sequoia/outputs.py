"""What a generation returns, and what an observer sees of each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

FinishReason = Literal["stop", "length", "interrupt"]


@dataclass
class GenerationOutput:
    """One generation. Counts cover what was kept: nothing after a stop is shown or counted.

    ``tokens_per_step`` is new tokens per target pass over a tree, bonus included (also called
    block efficiency or mean accepted tokens); autoregressive decoding has 1.00.
    ``accepted_per_step`` counts drafted tokens only, the bonus left out.
    """

    token_ids: list[int]  # new ones only; a stop token that ended the text is the last of them
    text: str  # without the stop token, cut before a stop string
    finish_reason: FinishReason
    num_prompt_tokens: int
    accepted_per_step: list[int]
    verifier: str  # "greedy (rrs at T = 0)" where temperature 0 made the greedy rule apply
    tree: str
    seed: int

    @property
    def num_steps(self) -> int:
        return len(self.accepted_per_step)

    @property
    def tokens_per_step(self) -> float:
        return len(self.token_ids) / self.num_steps if self.num_steps else 0.0


class StepRecord(NamedTuple):
    """A step as an observer sees it. Valid until the next step: clone what you keep.

    ``target_rows`` and ``draft_rows`` have ``.logits`` and ``.probs`` ([m, V] and [E, V], after
    temperature and filters); target probabilities are computed when they are first read. Near the
    end of a text the tree may be its root alone: then ``draft_rows`` is None.
    """

    tree: Any  # TreeTensors
    tokens: Tensor  # [m] drafted tokens, the root first
    target_rows: Any
    draft_rows: Any
    path: list[int]
    emitted: list[int]  # accepted tokens, then the bonus


Observer = Callable[[StepRecord], None]
