"""Distances between the draft and the target's stored top tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def gather_top(ids: Tensor, logprobs: Tensor, row_of: Tensor | None) -> tuple[Tensor, Tensor]:
    """(columns [A, K], p [A, K]): the target's top tokens in the head's numbering.

    ``row_of`` [V] maps a token to its head row, -1 without one: such a token gets column 0 and
    probability 0. None: the head scores every token.
    """
    if row_of is None:
        return ids, logprobs.exp()
    columns = row_of[ids]
    return columns.clamp(min=0), torch.where(columns >= 0, logprobs.exp(), 0.0)


def kl(logits: Tensor, columns: Tensor, p: Tensor) -> Tensor:
    """Cross-entropy -sum p log q over the stored tokens, a mean over rows, in nats.

    It is KL(p || q) up to p's own entropy. ``logits`` [A, N]; ``columns`` and ``p`` [A, K]. p is
    not renormalised: a row whose mass lies outside the head weighs less.
    """
    logits = logits.float()
    picked = (p * logits.gather(-1, columns)).sum(-1)
    return (p.sum(-1) * logits.logsumexp(-1) - picked).mean()


def total_variation(logits: Tensor, columns: Tensor, p: Tensor) -> Tensor:
    """1 - sum min(p, q) over the stored tokens, a mean over rows.

    One minus the chance that a first child drawn from q is accepted (Leviathan et al. 2023,
    arXiv 2211.17192, corollary 3.6); tokens outside the stored ones count as no overlap.
    """
    logits = logits.float()
    q = (logits.gather(-1, columns) - logits.logsumexp(-1, keepdim=True)).exp()
    return 1.0 - torch.minimum(p, q).sum(-1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"kl": kl, "tv": total_variation}
