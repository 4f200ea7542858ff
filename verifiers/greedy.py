"""greedy: T = 0. Accept the child that is the target's argmax; the bonus is that argmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .plans import draw_order, no_hub, planned
from .probs import RowsLike, largest


class Greedy:
    """Children = top-k of the draft logits. No randomness: every probability is 0 or 1.

    Law: the emitted tokens are those of plain greedy decoding with the target. Ties in the target
    go to the lowest token id, as in ``argmax``.
    """

    name = "greedy"
    max_children: int | None = None
    any_drafts = True  # drawn children may be pruned or re-ranked

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        return top_children(rows, num_children)

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        best, token = target.logits.max(-1, keepdim=True)  # [B, 1]; a NaN counts as the largest
        fault = ~best[:, 0].isfinite()
        hit = drafted.live & (drafted.tokens == token) & ~fault[:, None]
        return Plan(
            draw_order(drafted.tokens),
            hit.to(budget.dtype),
            torch.ones_like(budget),
            torch.zeros_like(target.logits).scatter(1, token, 1.0),
            fault,
        )


def top_children(rows: RowsLike, num_children: Sequence[int]) -> Drafted:
    """The k largest logits of each row, best first. Tokens outside the support are not live."""
    logits = rows.logits
    live = planned(num_children, logits.device)
    width = min(live.shape[1], logits.shape[1])  # a vocabulary may be smaller than a node is wide
    values, tokens = largest(logits, width)
    extra = live.shape[1] - width
    values = torch.nn.functional.pad(values, (0, extra), value=-torch.inf)
    tokens = torch.nn.functional.pad(tokens, (0, extra))
    return Drafted(tokens, live & (values > -torch.inf), no_hub(tokens))
