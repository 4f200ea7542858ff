"""What a caller may ask of one generation, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """How to sample, and when to stop.

    ``temperature`` 0 is greedy decoding; filters apply in transformers' order (temperature, then
    ``top_k``, then ``top_p``), ``top_k=0`` and ``top_p=1.0`` switch one off. ``seed=None`` draws a
    seed from torch's global generator. ``stop_token_ids=None`` takes the model's generation
    config; ``()`` never stops on a token. ``stop`` are strings that end the text before them.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        if isinstance(self.stop_token_ids, int):
            object.__setattr__(self, "stop_token_ids", (self.stop_token_ids,))
        if self.stop_token_ids is not None:
            ids = tuple(int(token) for token in self.stop_token_ids)
            object.__setattr__(self, "stop_token_ids", ids)
        self._check()

    def _check(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature must be a finite number >= 0 (0 is greedy), got {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] (1 is off), got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 is off), got {self.top_k}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in [0, 2**63), got {self.seed}")
        if any(text == "" for text in self.stop):
            raise ValueError("stop strings must not be empty")

    @property
    def greedy(self) -> bool:
        """Decided on the host before any division by the temperature."""
        return self.temperature == 0
