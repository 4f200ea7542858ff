"""rrs: recursive rejection sampling with i.i.d. children (SpecInfer, arXiv 2305.09781)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .draws import inverse_cdf
from .plans import finish, no_hub, planned
from .probs import RowsLike, at, either, positive_part, ratio


class Rrs:
    """Children drawn from q with replacement; child x accepted with min(1, r(x) / q(x)).

    r starts as the target row and becomes norm((r - q)+) after each rejection, a rejected
    duplicate included. The bonus is drawn from the last r.
    """

    name = "rrs"
    max_children: int | None = None

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        return draw_independent(rows, num_children, uniforms)

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        return plan_recursive(target, draft, drafted, budget, lambda slot: draft.probs)


def draw_independent(rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
    """Every child from q itself, independent of its siblings."""
    live = planned(num_children, uniforms.device)
    tokens = inverse_cdf(rows.probs, uniforms[:, : live.shape[1]])
    return Drafted(tokens, live, no_hub(tokens))


def plan_recursive(
    target: RowsLike,
    draft: RowsLike,
    drafted: Drafted,
    budget: Tensor,
    proposal: Callable[[int], Tensor],  # slot -> [B, V], the law that slot was drawn from
) -> Plan:
    """Reject child after child, keeping the mass of each token and of the dummy unnormalised.

    With ``mass`` = all that is left (1 at first), the normalised target is residual / mass, so the
    test r(x) / q(x) is residual(x) / (mass q(x)) and the next residual is (residual - mass q)+.
    Nothing is ever divided by a remaining mass, which may be 0.
    """
    residual = target.probs * budget[:, None]  # [B, V]
    rest = 1 - budget
    mass = torch.ones_like(budget)
    budgets = []
    for slot in range(drafted.tokens.shape[1]):
        token, live = drafted.tokens[:, slot], drafted.live[:, slot]
        used = proposal(slot) * mass[:, None]
        budgets.append(ratio(at(residual, token), at(used, token)))
        residual = either(live, positive_part(residual - used), residual)
        mass = torch.where(live, residual.sum(-1) + rest, mass)
    return finish(target, draft, drafted, torch.stack(budgets, 1), residual, rest)
