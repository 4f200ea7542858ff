"""Probabilities: the only place for temperature, filters, softmax and residuals.

Everything is computed in fp32 (fp64 when the caller's logits are), never in place on a caller's
tensor. No random decision is made here: see :mod:`verifiers.draws`.

Nothing here reads a device value on the host. Where a tensor lies in host memory anyway
(:func:`on_host`) and reads save passes over a row, :mod:`verifiers.host` takes over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from . import host

BLOCK = 256  # entries of a row searched as one; about sqrt(V) for real vocabularies
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
    scaled = logits
    if not on_host(logits) or float(sampling.temperature) != 1.0:  # a pass over the table
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
    return (numerator / denominator).nan_to_num(nan=empty).clamp(max=1.0)


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
    if where is None or _surely_all(where):
        return logits.scatter(1, tokens, -math.inf)
    # scatter_add of 0 or -inf: unlike a scatter of old values it has no order among duplicates
    hidden = torch.zeros_like(tokens, dtype=logits.dtype).masked_fill(where, -math.inf)
    return logits.scatter_add(1, tokens, hidden)


def _surely_all(where: Tensor) -> bool:
    """True in every place, as far as that may be asked: then a plain, quicker scatter will do."""
    return on_host(where) and bool(where.all())


def exclude(table: Tensor, tokens: Tensor, where: Tensor | None = None) -> Tensor:
    """``table`` [b, V] >= 0 with 0 at ``tokens`` [b, j] (only those with ``where`` [b, j])."""
    if where is None or _surely_all(where):
        return table.scatter(1, tokens, 0.0)
    # amin with 0 or inf: order-free among duplicates, as above
    cap = torch.full_like(tokens, math.inf, dtype=table.dtype).masked_fill(where, 0.0)
    return table.scatter_reduce(1, tokens, cap, "amin", include_self=True)


def either(condition: Tensor, first: Tensor, second: Tensor | float) -> Tensor:
    """Row by row: ``first`` [b, V] where ``condition`` [b], else ``second`` ([b, V] or a number).

    In host memory, where a row is usually the only one, no row is copied if all agree.
    """
    if on_host(condition):
        if bool(condition.all()):
            return first
        if isinstance(second, Tensor) and not bool(condition.any()):
            return second
    return torch.where(condition[:, None], first, second)


def largest(table: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row [b, V], descending: values and tokens [b, count].

    A top-k over whole rows costs ten times as much as a maximum; the k largest entries lie in the k
    blocks with the largest maxima, so in host memory only those are searched.
    """
    size = table.shape[1]
    whole = size // BLOCK
    if not on_host(table) or whole < 2 * count:
        return table.topk(count, dim=-1)
    best = table[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).amax(-1)
    if whole * BLOCK < size:
        best = torch.cat([best, table[:, whole * BLOCK :].amax(-1, keepdim=True)], 1)
    block = best.topk(count, dim=-1).indices  # [b, count]
    entries = (block[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    found = table.gather(1, entries.clamp(max=size - 1)).masked_fill(entries >= size, -math.inf)
    values, place = found.topk(count, dim=-1)
    # a filler beyond the end can only tie with filtered tokens: no child, but still a token id
    return values, entries.gather(1, place).clamp_(max=size - 1)
