"""k_hub: greedy multi-draft (arXiv 2502.18779); spechub's idea for any number of children."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .draws import draw_without
from .plans import finish, one_draw, planned
from .probs import RowsLike, at, either, exclude, largest, positive_part, ratio, without


class KHub:
    """Slot 0: one token i ~ q~, the draft restricted to non-hubs; slots 1..k-1: the k-1 likeliest.

    Accept i with min(1, p_i / q~_i); else one categorical draw over the hubs (mass p_h each) and
    the residual (p - q~)+ off the hubs. Acceptance p(hubs) + sum min(p, q~) off the hubs.
    Fewer supported tokens than children: they are all hubs, slot 0 is not live, q~ = 0.
    For a budget A read A p for p; the dummy's 1 - A is part of the categorical draw.
    """

    name = "k_hub"
    max_children: int | None = None

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        live = planned(num_children, uniforms.device)
        logits = rows.logits
        hubs = min(live.shape[1] - 1, logits.shape[1])
        live[:, 1 + hubs :] = False
        values, best = largest(logits, min(hubs + 1, logits.shape[1]))  # descending, one to spare
        supported = values > -torch.inf
        live[:, 1 : 1 + hubs] &= supported[:, :hubs]
        tokens = torch.zeros_like(live, dtype=torch.long)
        tokens[:, 1 : 1 + hubs] = best[:, :hubs]
        tokens[:, 0] = draw_without(rows, tokens[:, 1:], live[:, 1:], uniforms[:, 0])
        # the sampled child exists if the hubs do not use up the support
        supported[:, :hubs] &= ~live[:, 1 : 1 + hubs]
        live[:, 0] = supported.any(-1)
        return Drafted(tokens, live, torch.where(live[:, 1:].any(-1), 1, -1))

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        tokens, live = drafted.tokens, drafted.live
        mass = target.probs * budget[:, None]
        rest = 1 - budget
        hubs, is_hub = tokens[:, 1:], live[:, 1:]
        off_hubs = without(draft.logits, hubs, is_hub)  # q~
        off_hubs = either(live[:, 0], off_hubs, 0.0)
        residual = exclude(positive_part(mass - off_hubs), hubs, is_hub)
        sampled = ratio(at(mass, tokens[:, :1]), at(off_hubs, tokens[:, :1]))
        tests = one_draw(at(mass, hubs), residual.sum(-1) + rest, is_hub)
        return finish(target, draft, drafted, torch.cat([sampled, tests], 1), residual, rest)
