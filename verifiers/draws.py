"""The two random primitives, :func:`inverse_cdf` and :func:`coin`: every random decision of a step.

They take their uniforms as data. That is what makes the forms of a verifier (lazy, batched,
captured, meta) agree number for number, and what lets :mod:`verifiers.check` enumerate every
outcome instead of sampling. Nothing here reads a device value on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor

from . import host
from .probs import BLOCK, RowsLike, exclude, on_host, without

PLENTY = 1e-6  # remaining mass of a row above which its probabilities have not underflowed


class Decider(Protocol):
    """What stands in for the uniforms while :mod:`verifiers.check` enumerates."""

    def choose(self, weights: Tensor, u: Tensor) -> Tensor: ...

    def flip(self, u: Tensor, threshold: Tensor) -> Tensor: ...


_decider: ContextVar[Decider | None] = ContextVar("decider", default=None)


@contextmanager
def deciding(decider: Decider) -> Iterator[None]:
    """Within this context ``decider`` answers every :func:`inverse_cdf` and :func:`coin`."""
    token = _decider.set(decider)
    try:
        yield
    finally:
        _decider.reset(token)


def coin(u: Tensor, probability: Tensor) -> Tensor:
    """True with the given probability: u < c, u uniform on [0, 1). Shapes broadcast -> bool.

    c = 0 is never true, c >= 1 always.
    """
    decider = _decider.get()
    if decider is not None:
        return decider.flip(u, probability)
    return u < probability


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """Draw tokens by inverting the cumulative sum (fp64) of unnormalised weights.

    weights: [b, V] >= 0; u: [b] or [b, k] in [0, 1), one draw each -> long, the shape of u.
    The token is the first whose cumulative weight exceeds u * total, and never one of weight 0.
    Blocks are summed first and only the block hit is scanned, so a row is read about once. A block
    is hit in proportion to its sum in the dtype of the weights (summing fp32 in fp64 costs ten
    times as much); where the target lies within that sum then picks the entry.
    """
    decider = _decider.get()
    if decider is not None:
        return decider.choose(weights, u)
    targets = u.double().reshape(weights.shape[0], -1)  # [b, k]
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
    if whole < weights.shape[1]:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], 1)  # [b, blocks]
    sums = sums.double()
    targets = targets * sums.sum(-1, keepdim=True)
    if on_host(weights):
        table, sums, targets = weights.detach(), sums.detach(), targets.detach()
        drawn = host.invert(table.numpy(), sums.numpy(), targets.numpy(), BLOCK)
        return torch.from_numpy(drawn).view(u.shape)
    return _invert(weights, sums, targets).view(u.shape)


def mass_left(rows: RowsLike, tokens: Tensor, where: Tensor | None = None) -> Tensor | None:
    """Weights [b, V] of rows [b] without ``tokens`` [b, j] (only those with ``where``), by removing
    their mass: in host memory that saves another softmax. None where that is not to be had: on a
    device, or if so little mass is left in a row that some of it may have underflowed.
    """
    if on_host(tokens):
        weights = exclude(rows.probs, tokens, where)
        if bool((weights.sum(-1) >= PLENTY).all()):
            return weights
    return None


def draw_without(rows: RowsLike, tokens: Tensor, where: Tensor | None, u: Tensor) -> Tensor:
    """Draw from rows [b] without ``tokens`` [b, j] (only those with ``where``): u [b] -> [b].

    The law is that of :func:`probs.without`.
    """
    weights = mass_left(rows, tokens, where)
    return inverse_cdf(without(rows.logits, tokens, where) if weights is None else weights, u)


def _invert(weights: Tensor, sums: Tensor, targets: Tensor) -> Tensor:
    """weights [b, V], sums of its blocks [b, n], targets [b, k] in units of weight -> [b, k]."""
    block, share = _first_above(sums, targets)  # [b, k]
    size = weights.shape[1]
    entries = block[..., None] * BLOCK + torch.arange(BLOCK, device=weights.device)
    entries = entries.flatten(1)  # [b, k * BLOCK]
    if size % BLOCK:  # the last block is short
        inside = weights.gather(1, entries.clamp(max=size - 1)).double() * (entries < size)
    else:
        inside = weights.gather(1, entries).double()
    inside = inside.view(-1, BLOCK)
    within = share.view(-1, 1) * inside.sum(-1, keepdim=True)
    offset, _ = _first_above(inside, within)  # [b * k, 1]
    return block * BLOCK + offset.view(block.shape)


def _first_above(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """weights [r, n], targets [r, c] -> [r, c] the first index whose cumulative sum exceeds the
    target, and how far into that entry the target lies, in [0, 1].

    Indices of weight 0 never count: a device's parallel sum may grow by a rounding error there. If
    rounding leaves the target above every sum, the last index with weight is meant (the first to
    reach the total). Written as one argmax, which takes the first of equals: cut off just above
    the target, all sums that exceed it are equal, and without any the largest is left.
    """
    sums = weights.cumsum(-1)
    reached = sums * (weights > 0)
    above = targets.nextafter(targets.new_full((), math.inf))
    index = torch.minimum(reached[:, None], above[..., None]).argmax(-1)  # of [r, c, n]
    weight = weights.gather(-1, index)
    share = (targets - sums.gather(-1, index) + weight) / weight
    return index, share.clamp(0, 1)
