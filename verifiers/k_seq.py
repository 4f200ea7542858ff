"""k_seq: SpecTr's k-sequential selection with i.i.d. children (arXiv 2310.15141, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .plans import finish
from .probs import RowsLike, at, positive_part, ratio
from .rrs import draw_independent


class KSeq:
    """Child x is accepted with min(1, p(x) / (g q(x))), children in order, one g for all.

    beta(g) = sum min(q, p / g) is the chance to accept one child, S = sum over children of
    (1 - beta)^j how often one is offered; g is the smallest in [1, k] with S(beta(g)) <= g (below,
    more of a token is accepted than p holds). Residual norm((p - min(q, p / g) S)+). Acceptance
    1 - (1 - beta)^k, at least 1 - (1 - 1/k)^k of the optimum.
    """

    name = "k_seq"
    max_children: int | None = None

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        return draw_independent(rows, num_children, uniforms)

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        mass, q = target.probs * budget[:, None], draft.probs
        divisor = smallest_divisor(mass, q, drafted.live)  # [B]
        accepted = torch.minimum(q, mass / divisor[:, None])
        offers = expected_offers(accepted.sum(-1), drafted.live)
        residual = positive_part(mass - accepted * offers[:, None])
        tokens = drafted.tokens
        budgets = ratio(at(mass, tokens), at(q, tokens) * divisor[:, None])
        return finish(target, draft, drafted, budgets, residual, 1 - budget)


def expected_offers(beta: Tensor, live: Tensor) -> Tensor:
    """S(beta) = sum of (1 - beta)^j over the live slots j. beta [B], live [B, k] -> [B].

    As a sum: (1 - (1 - beta)^k) / beta is the same and fails at beta = 0.
    """
    powers = torch.arange(live.shape[1], device=live.device)
    miss = (1 - beta).clamp(min=0)[:, None]
    return torch.where(live, miss**powers, 0.0).sum(-1)


def smallest_divisor(mass: Tensor, q: Tensor, live: Tensor) -> Tensor:
    """g* by bisection on [1, k], the feasible end. mass, q [B, V]; live [B, k] -> [B]."""
    low = torch.ones_like(mass[:, 0])
    high = live.sum(-1).to(mass.dtype).clamp(min=1)  # g = k is always feasible: S <= k
    steps = 54 if mass.dtype == torch.float64 else 26  # to the last bit
    for _ in range(steps):
        middle = (low + high) / 2
        beta = torch.minimum(q, mass / middle[:, None]).sum(-1)
        feasible = expected_offers(beta, live) <= middle
        high = torch.where(feasible, middle, high)
        low = torch.where(feasible, low, middle)
    return high
