"""spechub's draw under order-blind budgets, for traversal of balanced trees (not in ``NAMES``).

Use it as ``Traversal(SpecHubBlind())``. In a balanced tree it accepts at least as much as the
order-aware budgets of ``spechub/traversal``; where one child carries the depth those are better.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Drafted, Plan
from .k_hub import KHub
from .probs import RowsLike
from .spechub import SpecHub


class SpecHubBlind(SpecHub):
    """Forgets which of the pair was drawn first: the set is {a, i} with i ~ q~, as in k_hub.

    Indeed P(i) = q_i + q_a q~_i = q~_i. So k_hub's plan is lossless on this draw: the child that is
    not the hub is tried first.
    """

    name = "spechub_blind"

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        if drafted.tokens.shape[1] == 1:
            return super().plan(target, draft, drafted, budget)
        paired = drafted.live[:, 1]
        slots = torch.arange(2, device=paired.device)
        order = torch.where((paired & (drafted.hub == 0))[:, None], 1 - slots, slots)
        pair = Drafted(drafted.tokens.gather(1, order), drafted.live, torch.where(paired, 1, -1))
        plan = KHub().plan(target, draft, pair, budget)
        # order is its own inverse
        return plan._replace(order=order, budgets=plan.budgets.gather(1, order))
