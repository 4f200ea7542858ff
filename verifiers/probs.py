"""Probabilities: the only place for temperature, filters, softmax, residuals and draws.

Everything is computed in fp32 (fp64 when the caller's logits are), never in place on a caller's
tensor. All random decisions of a step go through two primitives, :func:`inverse_cdf` and
:func:`coin`, which take their uniforms as data. That is what makes the forms of a verifier (lazy,
batched, captured, meta) agree number for number, and what lets :mod:`verifiers.check` enumerate
every outcome instead of sampling.

Nothing here reads a device value on the host. Where a tensor lies in host memory anyway
(:func:`on_host`) and reads save passes over a row, :mod:`verifiers.host` takes over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from . import host

BLOCK = 256  # entries per block of inverse_cdf; about sqrt(V) for real vocabularies
TINY = 1e-3  # how far the sum of a row may be from 1 before it is no distribution


class Sampling(NamedTuple):
    """How logits become a distribution. ``temperature`` and ``top_p`` stay on the device.

    temperature: [] > 0, not read when ``greedy``; top_p: [] in (0, 1], None = off;
    top_k: host int, 0 = off; greedy: T = 0, decided on the host, before any division.
    """

    temperature: Tensor
    top_p: Tensor | None = None
    top_k: int = 0
    greedy: bool = False


class RowsLike(Protocol):
    """What the verifiers read: :class:`Rows`, or something that makes them when asked."""

    @property
    def logits(self) -> Tensor: ...

    @property
    def probs(self) -> Tensor: ...

    @property
    def num_rows(self) -> int: ...

    def select(self, index: Tensor | Sequence[int]) -> RowsLike: ...


class Rows(NamedTuple):
    """Distributions of ``b`` nodes after temperature and filters.

    logits: [b, V] scaled, -inf where filtered (T = 0: raw). The support of a row is where these
    are finite, not where ``probs > 0``: probabilities underflow.
    probs: [b, V], rows sum to 1 (T = 0: one-hot of the argmax).
    """

    logits: Tensor
    probs: Tensor

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

    def select(self, index: Tensor | Sequence[int]) -> Rows:
        """The rows ``index`` ([c] long or host ints), in that order."""
        return Rows(_pick(self.logits, index), _pick(self.probs, index))


class DeferredRows:
    """Rows whose filters and softmax are computed when, and only where, they are asked for."""

    def __init__(self, raw_logits: Tensor, sampling: Sampling):  # [b, V]
        self._raw = raw_logits
        self._sampling = sampling
        self._all: Rows | None = None

    def _rows(self) -> Rows:
        if self._all is None:
            self._all = make_rows(self._raw, self._sampling)
        return self._all

    @property
    def num_rows(self) -> int:
        return self._raw.shape[0]

    @property
    def logits(self) -> Tensor:  # [b, V]
        return self._rows().logits

    @property
    def probs(self) -> Tensor:  # [b, V]
        return self._rows().probs

    def select(self, index: Tensor | Sequence[int]) -> Rows:
        return make_rows(_pick(self._raw, index), self._sampling)


def _pick(table: Tensor, index: Tensor | Sequence[int]) -> Tensor:
    if isinstance(index, Tensor):
        return table.index_select(0, index)
    if len(index) == 1:  # a view: the lazy walk selects one row at a time
        return table[index[0] : index[0] + 1]
    return table[list(index)]


def on_host(tensor: Tensor) -> bool:
    """True where reading a value costs nothing, so that code may branch on it."""
    return tensor.device.type == "cpu"


def working_dtype(logits: Tensor) -> torch.dtype:
    """fp32, or fp64 where the caller's logits are."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


# ---------------------------------------------------------------- from logits to rows


def make_rows(logits: Tensor, sampling: Sampling) -> Rows:
    """Temperature, then top-k, then top-p, as transformers orders them. logits [b, V] -> Rows [b].

    A token survives top-k if fewer than k logits are larger, and top-p if the tokens strictly more
    probable hold less than top_p. So ties at a threshold are all kept, where transformers keeps
    those its sort happens to put first; without ties the result is the same.
    """
    logits = logits.to(working_dtype(logits))
    if sampling.greedy:
        best, token = logits.max(-1, keepdim=True)
        one = 1 + 0 * best  # NaN where the largest logit is none, so that the row is a fault
        return Rows(logits, torch.zeros_like(logits).scatter(1, token, one))
    scaled = logits / sampling.temperature.to(logits.dtype)
    if 0 < sampling.top_k < logits.shape[-1]:
        least = _kth_largest(scaled, sampling.top_k)  # [b, 1]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    probs = scaled.softmax(-1)
    if sampling.top_p is None:
        return Rows(scaled, probs)
    nucleus = _nucleus_selected if on_host(probs) else _nucleus_sorted
    least = nucleus(probs, sampling.top_p)
    scaled = scaled.masked_fill(probs < least, -math.inf)
    return Rows(scaled, scaled.softmax(-1))


def _kth_largest(scaled: Tensor, k: int) -> Tensor:
    """[b, V] -> [b, 1], k < V."""
    if on_host(scaled):
        return torch.from_numpy(host.kth_largest(scaled.detach().numpy(), k))
    return scaled.topk(k, dim=-1).values[:, -1:]


def _nucleus_sorted(probs: Tensor, top_p: Tensor) -> Tensor:
    """Smallest probability kept by top-p, [b, V] -> [b, 1], by sorting whole rows."""
    ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.double().cumsum(-1) - ordered  # ties counted one by one
    # top_p = 1 means off; rounding of the sum must not cut the last tokens
    kept = ((before < top_p) | (top_p >= 1)).sum(-1, keepdim=True).clamp(min=1)
    return ordered.gather(-1, kept - 1)


def _nucleus_selected(probs: Tensor, top_p: Tensor) -> Tensor:
    """The same in host memory, by selection."""
    wanted = float(top_p)
    if wanted >= 1:
        return probs.amin(-1, keepdim=True)
    return torch.from_numpy(host.nucleus(probs.detach().numpy(), wanted))


def faulty(probs: Tensor) -> Tensor:
    """[b, V] -> [b] bool: not a distribution (NaN, negative, massless, or a sum that is off)."""
    # A NaN makes both comparisons false, so this is written as "not valid".
    return ~((probs.amin(-1) >= 0) & ((probs.sum(-1) - 1).abs() < TINY))


# ---------------------------------------------------------------- small exact pieces


def at(table: Tensor, tokens: Tensor) -> Tensor:
    """table [b, V], tokens [b] -> [b], or tokens [b, k] -> [b, k]: entries at the tokens."""
    if tokens.dim() == 1:
        return table.gather(1, tokens[:, None])[:, 0]
    return table.gather(1, tokens)


def ratio(numerator: Tensor, denominator: Tensor, empty: float = 0.0) -> Tensor:
    """min(1, numerator / denominator) elementwise; 0/0 is ``empty``, x/0 is 1. Both >= 0."""
    quotient = (numerator / denominator).clamp(max=1.0)
    return quotient.masked_fill((numerator == 0) & (denominator == 0), empty)


def positive_part(table: Tensor) -> Tensor:
    """x+ = max(x, 0), elementwise."""
    return table.clamp(min=0)


def without(logits: Tensor, tokens: Tensor, where: Tensor | None = None) -> Tensor:
    """Softmax of ``logits`` [b, V] with ``tokens`` [b, j] masked (only those with ``where``).

    Never computed by dividing probabilities by 1 - q: where q underflows that is another law.
    A row with nothing left is NaN; its caller knows from the support that it must not use it.
    """
    return mask_tokens(logits, tokens, where).softmax(-1)


def mask_tokens(logits: Tensor, tokens: Tensor, where: Tensor | None = None) -> Tensor:
    """``logits`` [b, V] with ``tokens`` [b, j] at -inf (only those with ``where`` [b, j])."""
    if where is None:
        return logits.scatter(1, tokens, -math.inf)
    # scatter_add of 0 or -inf: unlike a scatter of old values it has no order among duplicates
    hidden = torch.zeros_like(tokens, dtype=logits.dtype).masked_fill(where, -math.inf)
    return logits.scatter_add(1, tokens, hidden)


def exclude(table: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """``table`` [b, V] >= 0 with 0 at ``tokens`` [b, j] (only those with ``where`` [b, j])."""
    # amin with 0 or inf: order-free among duplicates, as above
    cap = torch.full_like(tokens, math.inf, dtype=table.dtype).masked_fill(where, 0.0)
    return table.scatter_reduce(1, tokens, cap, "amin", include_self=True)


# ---------------------------------------------------------------- the two random primitives


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
    Blocks are summed first and only the block hit is scanned, so a row is read about once.
    """
    decider = _decider.get()
    if decider is not None:
        return decider.choose(weights, u)
    targets = u.double().reshape(weights.shape[0], -1)  # [b, k]
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1, dtype=torch.float64)
    if whole < weights.shape[1]:
        tail = weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
        sums = torch.cat([sums, tail], 1)  # [b, blocks]
    targets = targets * sums.sum(-1, keepdim=True)
    if on_host(weights):
        table, sums, targets = weights.detach(), sums.detach(), targets.detach()
        drawn = host.invert(table.numpy(), sums.numpy(), targets.numpy(), BLOCK)
        return torch.from_numpy(drawn).view(u.shape)
    return _invert(weights, sums, targets).view(u.shape)


def _invert(weights: Tensor, sums: Tensor, targets: Tensor) -> Tensor:
    """weights [b, V], sums of its blocks [b, n], targets [b, k] in units of weight -> [b, k]."""
    block, before = _first_above(sums, targets)  # [b, k]
    size = weights.shape[1]
    entries = block[..., None] * BLOCK + torch.arange(BLOCK, device=weights.device)
    entries = entries.flatten(1)  # [b, k * BLOCK]
    if size % BLOCK:  # the last block is short
        inside = weights.gather(1, entries.clamp(max=size - 1)).double() * (entries < size)
    else:
        inside = weights.gather(1, entries).double()
    offset, _ = _first_above(inside.view(-1, BLOCK), (targets - before).view(-1, 1))  # [b * k, 1]
    return block * BLOCK + offset.view(block.shape)


def _first_above(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """weights [r, n], targets [r, c] -> [r, c] the first index whose cumulative sum exceeds the
    target, and the sum before it.

    Indices of weight 0 never count: a device's parallel sum may grow by a rounding error there. If
    rounding leaves the target above every sum, the last index with weight is meant (the first to
    reach the total). Written as one argmax, which takes the first of equals: cut off just above
    the target, all sums that exceed it are equal, and without any the largest is left.
    """
    sums = weights.cumsum(-1)
    reached = sums * (weights > 0)
    above = targets.nextafter(targets.new_full((), math.inf))
    index = torch.minimum(reached[:, None], above[..., None]).argmax(-1)  # of [r, c, n]
    return index, (sums - weights).gather(-1, index)
