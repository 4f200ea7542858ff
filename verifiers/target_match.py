"""target_match: draw the target's own token, and accept the child that happens to be it.

SpecInfer's naive verification (arXiv 2305.09781); the only rule under which children may be pruned
or re-ranked after they were drawn (EAGLE-2/3 trees).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .base import Drafted, Plan
from .greedy import top_children
from .plans import finish, one_draw
from .probs import RowsLike, at, exclude


class TargetMatch:
    """Children = top-k of the draft. One draw Y ~ p: accept the child equal to Y, else emit Y.

    Lossless for any children, however they were chosen; acceptance p(set of children). Told as a
    plan: child x has mass A p(x), tested one by one out of the mass that remains (independent coins
    p(x) would be wrong). Of equal children the first is tried, the others are dead.
    """

    name = "target_match"
    max_children: int | None = None
    any_drafts = True  # drawn children may be pruned or re-ranked

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        return top_children(rows, num_children)

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        tokens, live = drafted.tokens, drafted.live
        same = (tokens[:, :, None] == tokens[:, None, :]) & live[:, None, :]  # [B, k, k]
        first = live & ~same.tril(-1).any(-1)
        mass = target.probs * budget[:, None]
        residual = exclude(mass, tokens, first)
        rest = 1 - budget
        budgets = one_draw(at(mass, tokens), residual.sum(-1) + rest, first)
        return finish(target, None, drafted, budgets, residual, rest)
