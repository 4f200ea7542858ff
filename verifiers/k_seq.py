"""k_seq: SpecTr's k-sequential selection with i.i.d. children (arXiv 2310.15141, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .base import Drafted, Plan
from .plans import finish
from .probs import RowsLike, at, on_host, positive_part, ratio
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
    """g* on [1, k], the feasible end of a bracket. mass, q [B, V]; live [B, k] -> [B].

    Any feasible g is lossless; the smallest accepts most. Secants close in on it (Illinois: an end
    that stays put twice counts half); a bisection in every third round guarantees progress.
    """
    precision = max(1e-12, 8 * torch.finfo(mass.dtype).eps)
    if on_host(mass):  # about 7 rounds, each a few passes over a row and some Python arithmetic
        rows = zip(mass.detach().numpy(), q.detach().numpy(), live.tolist(), strict=True)
        return torch.tensor([_divisor_of_row(*row, precision) for row in rows], dtype=mass.dtype)

    def slack(g: Tensor) -> Tensor:  # >= 0: feasible
        return g - expected_offers(torch.minimum(q, mass / g[:, None]).sum(-1), live)

    low = torch.ones_like(mass[:, 0])
    high = live.sum(-1).to(mass.dtype).clamp(min=1)  # g = k is always feasible: S <= k
    slack_low, slack_high = slack(low), slack(high).clamp(min=0)
    high = torch.where(slack_low >= 0, low, high)
    lowered = raised = torch.zeros_like(low, dtype=torch.bool)  # which end the last round moved
    for step in range(60 if mass.dtype == torch.float64 else 30):
        middle = (low + high) / 2
        if step % 3 != 2:
            secant = high - slack_high * (high - low) / (slack_high - slack_low)
            middle = torch.where((secant > low) & (secant < high), secant, middle)
        value = slack(middle)
        feasible = value >= 0
        slack_low = torch.where(feasible, torch.where(lowered, slack_low / 2, slack_low), value)
        slack_high = torch.where(feasible, value, torch.where(raised, slack_high / 2, slack_high))
        high = torch.where(feasible, middle, high)
        low = torch.where(feasible, low, middle)
        lowered, raised = feasible, ~feasible
    return high


def _divisor_of_row(mass: np.ndarray, q: np.ndarray, live: list[bool], precision: float) -> float:
    """The same for one row in host memory, ending as soon as the bracket is narrow."""
    slots = [slot for slot, exists in enumerate(live) if exists]

    def slack(g: float) -> float:
        miss = max(1 - float(np.minimum(q, mass / g).sum()), 0.0)
        return g - sum(miss**slot for slot in slots)

    low, high = 1.0, float(max(len(slots), 1))
    slack_low = slack(low)
    if slack_low >= 0:
        return low
    slack_high, moved = max(slack(high), 0.0), 0  # which end the last round moved: +1 is high
    for step in range(60):
        if not slack_high > precision or high - low <= precision:  # a NaN row ends here too
            break
        middle = (low + high) / 2
        if step % 3 != 2:
            secant = high - slack_high * (high - low) / (slack_high - slack_low)
            middle = secant if low < secant < high else middle
        value = slack(middle)
        if value >= 0:
            high, slack_high = middle, value
            slack_low, moved = (slack_low / 2 if moved == 1 else slack_low), 1
        else:
            low, slack_low = middle, value
            slack_high, moved = (slack_high / 2 if moved == -1 else slack_high), -1
    return high
