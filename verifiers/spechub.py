"""spechub: two children, one of which is always the draft's favourite (arXiv 2411.05289)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .draws import draw_without, inverse_cdf
from .plans import finish, planned
from .probs import RowsLike, at, either, exclude, largest, on_host, positive_part, ratio, without


class SpecHub:
    """x0 ~ q; if x0 is not the hub a = argmax q then x1 = a, else x1 ~ q~ (q without the hub).

    Accept, with S_ia = sum (q - p)+ and S_ai = sum (q_a q~ - (p - q)+)+, both off the hub:
    drawn (i, a): i with min(1, p_i / q_i), then a with (p_a - S_ai)+ / S_ia;
    drawn (a, i): i first with (p_i - q_i)+ / (q_a q~_i), then a with p_a / S_ai;
    residual (p - q~)+ off the hub. Acceptance p_a + sum min(p, q~): optimal for this draw.
    With one child (one planned, or the hub is the whole support): single-draft rejection.
    For a budget A read A p for p.
    """

    name = "spechub"
    max_children: int | None = 2

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        live = planned(num_children, uniforms.device)
        values, tokens = largest(rows.logits, min(2, rows.logits.shape[1]))
        best = tokens[:, 0]  # the hub
        first = inverse_cdf(rows.probs, uniforms[:, 0])
        is_hub = first == best
        if live.shape[1] == 1:
            return Drafted(first[:, None], live, torch.where(is_hub, 0, -1))
        off_hub = draw_without(rows, tokens[:, :1], None, uniforms[:, 1])
        second = torch.where(is_hub, off_hub, best)
        live[:, 1] &= (values[:, 1:] > -torch.inf).any(-1)  # the hub may be all there is
        hub = torch.where(is_hub, 0, torch.where(live[:, 1], 1, -1))
        return Drafted(torch.stack([first, second], 1), live, hub)

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        mass, q = target.probs * budget[:, None], draft.probs
        rest = 1 - budget
        single = ratio(at(mass, drafted.tokens), at(q, drafted.tokens))  # right for slot 0 alone
        over = positive_part(mass - q)
        if drafted.tokens.shape[1] == 1:
            return finish(target, draft, drafted, single, over, rest)
        paired = drafted.live[:, 1]
        if on_host(paired) and not bool(paired.any()):
            return finish(target, draft, drafted, single, over, rest)

        hub_first = drafted.hub == 0
        hub = at(drafted.tokens, drafted.hub.clamp(min=0)[:, None])  # [B, 1]
        other = torch.where(hub_first[:, None], drafted.tokens[:, 1:2], drafted.tokens[:, :1])
        everywhere = torch.ones_like(hub, dtype=torch.bool)
        off_hub = without(draft.logits, hub)
        given_hub = off_hub * at(q, hub)  # Q(a, i)
        short_first = exclude(positive_part(q - mass), hub, everywhere).sum(-1)  # S_ia
        short_second = positive_part(given_hub - over).sum(-1)  # S_ai; given_hub is 0 at the hub
        hub_mass = at(mass, hub)[:, 0]

        i_ia = ratio(at(mass, other), at(q, other))[:, 0]
        i_ai = ratio(at(over, other), at(given_hub, other), empty=1.0)[:, 0]
        a_ia = ratio(positive_part(hub_mass - short_second), short_first, empty=1.0)
        a_ai = ratio(hub_mass, short_second, empty=1.0)
        pair = torch.where(
            hub_first[:, None], torch.stack([a_ai, i_ai], 1), torch.stack([i_ia, a_ia], 1)
        )
        residual = exclude(positive_part(mass - off_hub), hub, everywhere)
        slots = torch.arange(2, device=hub.device)
        return finish(
            target,
            draft,
            drafted,
            torch.where(paired[:, None], pair, single),
            either(paired, residual, over),
            rest,
            order=torch.where((paired & hub_first)[:, None], 1 - slots, slots),
        )
