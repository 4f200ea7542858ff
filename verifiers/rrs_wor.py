"""rrs_wor: recursive rejection sampling without replacement (Sequoia, arXiv 2402.12374)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .draws import inverse_cdf, mass_left
from .plans import no_hub, planned
from .probs import RowsLike, mask_tokens, on_host
from .rrs import plan_recursive


class RrsWor:
    """Children drawn one after another, each from q without the tokens already drawn.

    Accepted as in rrs, with that same q in the test. When the support of q is exhausted, further
    children are uniform over all tokens not yet drawn. At most V children live.
    """

    name = "rrs_wor"
    max_children: int | None = None

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        live = planned(num_children, uniforms.device)
        logits = rows.logits
        live[:, logits.shape[1] :] = False
        tokens = torch.zeros_like(live, dtype=torch.long)
        for slot in range(min(live.shape[1], logits.shape[1])):
            weights = rows.probs if slot == 0 else weights_left(rows, tokens[:, :slot])
            tokens[:, slot] = inverse_cdf(weights, uniforms[:, slot])
        return Drafted(tokens, live, no_hub(tokens))

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        def proposal(slot: int) -> Tensor:
            if slot == 0:
                return draft.probs
            return remaining(draft.logits, drafted.tokens[:, :slot])

        return plan_recursive(target, draft, drafted, budget, proposal)


def weights_left(rows: RowsLike, tried: Tensor) -> Tensor:
    """Weights [b, V] of the next child, in proportion to :func:`remaining`."""
    weights = mass_left(rows, tried)
    return remaining(rows.logits, tried) if weights is None else weights


def remaining(logits: Tensor, tried: Tensor) -> Tensor:
    """Law of the next child: logits [b, V], tried [b, j] tokens -> probabilities [b, V].

    Softmax without the tried tokens; uniform over the others where the support is exhausted.
    """
    left = mask_tokens(logits, tried)
    exhausted = left.amax(-1, keepdim=True) == -math.inf  # [b, 1]
    if not on_host(exhausted) or bool(exhausted.any()):
        left = torch.where(exhausted, mask_tokens(torch.zeros_like(left), tried), left)
    return left.softmax(-1)
