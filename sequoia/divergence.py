"""Why a text at temperature 0 is not the autoregressive one: show the tie that was broken.

The same tokens scored in passes of other shapes (a tree, one token, a chunk of a prompt) have
logits that differ by rounding, more so in half precision. Where the two best logits are closer
than that, either token is an argmax, and from there on the texts are different texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sequoia.decoder import SpeculativeDecoder

TIE = 16  # roundings: a sum over hidden states in another order moves a logit by a few


@dataclass(frozen=True)
class Divergence:
    """The first place where two texts differ, and the target's row there."""

    position: int  # of the new tokens, 0 = the first one
    token: int  # of the text looked into
    plain_token: int  # of the autoregressive text
    best: tuple[int, int]  # the two tokens with the largest logits in one more pass
    logits: tuple[float, float]  # theirs, largest first
    dtype: torch.dtype  # of the pass

    @property
    def gap(self) -> float:
        """Between the two best logits."""
        return self.logits[0] - self.logits[1]

    @property
    def roundings(self) -> float:
        """The gap in units of the dtype's spacing at this size of logit."""
        size = max(abs(logit) for logit in self.logits)
        return self.gap / max(torch.finfo(self.dtype).eps * size, torch.finfo(torch.float32).tiny)

    @property
    def is_tie(self) -> bool:
        """Whether rounding can have decided: both texts go on with one of the two best."""
        return self.roundings <= TIE and {self.token, self.plain_token} == set(self.best)

    def explain(self, tokenizer: Any = None) -> str:
        """A few lines for a person."""

        def show(token: int) -> str:
            return f"{token}" if tokenizer is None else f"{token} {tokenizer.decode([token])!r}"

        first, second = self.best
        name = str(self.dtype).removeprefix("torch.")
        verdict = (
            "a tie within rounding: either is the argmax, depending on the shape of the pass"
            if self.is_tie
            else "no tie: rounding does not explain this, please report it"
        )
        return (
            f"first difference at new token {self.position}: {show(self.token)} here, "
            f"{show(self.plain_token)} autoregressively\n"
            f"two best logits there: {self.logits[0]:.6g} for {show(first)}, {self.logits[1]:.6g} "
            f"for {show(second)}\n"
            f"their gap is {self.gap:.3g}, {self.roundings:.1f} roundings of {name}: {verdict}"
        )


def find_divergence(
    plain: SpeculativeDecoder,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    plain_tokens: Sequence[int],
) -> Divergence | None:
    """The first difference of two texts at temperature 0, None if there is none.

    ``plain``: a decoder of the same target, not in use; its target scores the text up to there
    once more. ``tokens``, ``plain_tokens``: new tokens only; where one text merely ends earlier
    they do not differ.
    """
    pairs = enumerate(zip(tokens, plain_tokens, strict=False))
    position = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
    if position is None:
        return None
    runner = plain.target
    known = torch.tensor([*prompt_ids, *tokens[:position]], device=runner.device)
    row = runner.prefill(known)[0, : plain.pair.vocab_size]
    best = row.topk(2)
    (first, second), (high, low) = best.indices.tolist(), best.values.tolist()
    return Divergence(
        position,
        tokens[position],
        plain_tokens[position],
        (first, second),
        (high, low),
        runner.model.compute_dtype,
    )
