"""What a caller may ask of one generation, validated once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Settings of transformers' GenerationConfig that change the text and that no step here applies,
# with the values that mean "off". They are refused rather than ignored.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1),
    "penalty_alpha": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None,),
    "sequence_bias": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "min_p": (None, 0.0),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "guidance_scale": (None, 1.0),
    "watermarking_config": (None,),
    "force_words_ids": (None,),
    "constraints": (None,),
    "max_time": (None,),
}


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
        self._become("max_new_tokens", operator.index, "an integer")
        self._become("temperature", float, "a number")
        self._become("top_k", operator.index, "an integer")
        self._become("top_p", float, "a number")
        if self.seed is not None:
            self._become("seed", operator.index, "an integer")
        self._become("stop", _strings, "strings")
        if self.stop_token_ids is not None:
            self._become("stop_token_ids", _ids, "token ids")
        self._check()

    def _become(self, name: str, kind: Callable[[Any], Any], what: str) -> None:
        value = getattr(self, name)
        try:
            if isinstance(value, str) and name != "stop":
                raise TypeError
            object.__setattr__(self, name, kind(value))
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be {what}, got {value!r}") from None

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

    @classmethod
    def from_generation_config(cls, config: Any, **changes: Any) -> SamplingParams:
        """What a transformers ``GenerationConfig`` asks for; ``changes`` go on top.

        Raises ValueError naming a setting that is not supported (penalties, beams, ...).
        """
        for name, off in UNSUPPORTED.items():
            value = getattr(config, name, None)
            if value not in off:
                raise ValueError(f"{name}={value!r} is not supported: leave it out ({off[-1]})")
        given = {
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature if config.do_sample else 0.0,
            "top_k": config.top_k if config.do_sample else 0,
            "top_p": config.top_p if config.do_sample else 1.0,
            "stop_token_ids": config.eos_token_id,
            "stop": getattr(config, "stop_strings", None),
        }
        given = {name: value for name, value in given.items() if value is not None}
        return cls(**{**given, **changes})

    @property
    def greedy(self) -> bool:
        """Decided on the host before any division by the temperature."""
        return self.temperature == 0


def _strings(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return texts


def _ids(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(operator.index(token) for token in value)
