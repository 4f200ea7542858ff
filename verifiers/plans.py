"""Pieces that several rules share: laying out drafted children, and ending a plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Drafted, Plan
from .probs import RowsLike, either, faulty, ratio


def planned(num_children: Sequence[int], device: torch.device) -> Tensor:
    """[b, k] bool: slot j of row i exists, j < num_children[i]; k = max(num_children).

    Written with fills: a tensor made from a host list is a copy, illegal in a captured step.
    """
    width = max(num_children)
    live = torch.ones(len(num_children), width, dtype=torch.bool, device=device)
    start = 0
    for row, count in enumerate(num_children):  # one fill per run of equal counts
        if row + 1 == len(num_children) or num_children[row + 1] != count:
            if count < width:
                live[start : row + 1, count:] = False
            start = row + 1
    return live


def no_hub(tokens: Tensor) -> Tensor:
    """[b] of -1."""
    return torch.full_like(tokens[:, 0], -1)


def draw_order(tokens: Tensor) -> Tensor:
    """[B, k]: slots 0, 1, ... tried in the order they were drawn."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def finish(
    target: RowsLike,
    draft: RowsLike | None,
    drafted: Drafted,
    budgets: Tensor,
    residual: Tensor,  # [B, V] mass left on each token, all children failed
    rest: Tensor,  # [B] mass left on the dummy token
    order: Tensor | None = None,
) -> Plan:
    """Close a plan: the node stops here with the share of the real tokens in the mass left.

    No mass left at all has probability zero and needs A = 1: then the law is the node's own target
    row. The same row stands in where only the tokens have none (stop is 0: it is never drawn
    from). A row that is no distribution is a fault: its node stops, so that the walk ends there.
    ``draft`` None: the rule does not read it, so nor is it checked.
    """
    fault = faulty(target.probs)
    if draft is not None:
        fault = fault | faulty(draft.probs)
    left = residual.sum(-1)
    stop = ratio(left, left + rest, empty=1.0)
    return Plan(
        draw_order(drafted.tokens) if order is None else order,
        budgets.masked_fill(~drafted.live | fault[:, None], 0.0),
        stop.masked_fill(fault, 1.0),
        either(left > 0, residual, target.probs),
        fault,
    )


def one_draw(masses: Tensor, left: Tensor, live: Tensor) -> Tensor:
    """One categorical draw, told as tests one by one in slot order.

    masses: [B, k] mass of each slot's token, left: [B] all other mass -> [B, k] probability of slot
    j given that no earlier slot was drawn. The mass remaining is a sum of non-negative terms, which
    keeps its relative precision where 1 - (mass used) would lose it.
    """
    masses = masses.masked_fill(~live, 0.0)
    remaining = masses.flip(1).cumsum(1).flip(1) + left[:, None]  # this slot and all after it
    return ratio(masses, remaining)
