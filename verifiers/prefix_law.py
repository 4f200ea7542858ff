"""Acceptance of recursive rejection without replacement (rrs_wor), as a law on rejected prefixes.

Write the unnormalised residual as ``R = w r``: w is the probability that every child so far was
rejected *given the tokens that were tried*, r the residual of the rule. On untried tokens q_cur is
``c q`` with c = 1 / (untried mass of q), and by induction ``R = (p - b q)+`` with

    b' = b + w c,      w' = E(b') = sum (p - b' q)+,      child accepted with probability w - w'.

Tried tokens need no exception: a rejected x had R_x < w c q_x, so p_x < b' q_x for good. A prefix
is therefore three numbers (b, w, c) and its tried set; the rejected token is x with probability
(w c q_x - R_x)+ / w'. Once supp(q) is used up the rule draws uniformly: then R = (p - d)+ off
supp(q), whatever the order was, so that phase is a closed form.

The rule: Chen et al., Sequoia, arXiv 2402.12374, and Jeon et al., arXiv 2401.06706.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .excess import ExcessMass

MAX_PREFIXES = 1_000_000
_CHUNK = 2_000_000  # prefixes held at a time, over all rows of a chunk


class _Prefixes(NamedTuple):
    """N rejected prefixes of one length per row."""

    tried: Tensor  # [B, N, length] long, token ids
    prob: Tensor  # [B, N] probability of the prefix given that all its tokens were rejected
    b: Tensor  # [B, N]
    w: Tensor  # [B, N]


class _Law:
    """What the recursion needs to know about p and q: [B, V] fp64, for up to k children."""

    def __init__(self, p: Tensor, q: Tensor, k: int, num_candidates: int) -> None:
        self.p, self.q = p, q
        self.excess = ExcessMass(p, q)
        # No more than k - 1 tokens are ever tried, so one of the k heaviest is left: the untried
        # mass is a sum of like terms, without the cancellation of 1 - (tried mass).
        heavy = min(k, p.shape[1])
        self.candidates = q.topk(max(num_candidates, heavy), dim=-1).indices  # [B, S]
        self.heavy = self.candidates[:, :heavy]
        self.heavy_q = q.gather(-1, self.heavy)
        self.light_q = q.scatter(-1, self.heavy, 0.0)  # [B, V]
        self.light_total = self.light_q.sum(-1, keepdim=True)

    def root(self) -> _Prefixes:
        one = self.p.new_ones(self.p.shape[0], 1)
        tried = one.new_zeros(one.shape[0], 1, 0, dtype=torch.long)
        return _Prefixes(tried, one, torch.zeros_like(one), one)

    def heavy_tried(self, prefixes: _Prefixes) -> Tensor:
        """[B, N, heavy] bool."""
        return (self.heavy[:, None, :, None] == prefixes.tried[:, :, None, :]).any(-1)

    def step(self, prefixes: _Prefixes) -> Tensor:
        """w c of the child drawn after each prefix [B, N]; 0 where no untried token has q > 0."""
        left = (self.heavy_q[:, None] * ~self.heavy_tried(prefixes)).sum(-1)
        light = _gather_rows(self.light_q, prefixes.tried).sum(-1)
        untried = left + (self.light_total - light).clamp_min(0)
        return torch.where(untried > 0, prefixes.w / untried, 0.0)

    def rejected(self, prefixes: _Prefixes, step: Tensor, tokens: Tensor) -> Tensor:
        """Mass (w c q_x - R_x)+ of rejecting each of tokens [B, N, T] next; 0 for tried tokens."""
        q, p = _gather_rows(self.q, tokens), _gather_rows(self.p, tokens)
        residual = (p - prefixes.b[..., None] * q).clamp_min(0)
        mass = (step[..., None] * q - residual).clamp_min(0)
        tried = (tokens[..., None] == prefixes.tried[:, :, None, :]).any(-1)
        return mass.masked_fill(tried, 0.0)


def prefix_count(q: Tensor, k: int) -> int:
    """Rejected prefixes per row that an exact answer for k children enumerates: S^(k-1), with S the
    largest number of supported tokens of a row of q [B, V] (children beyond S cost nothing)."""
    support = int((q > 0).sum(-1).max()) if q.shape[0] else 1
    return support ** (min(k, support) - 1)


def exact(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Exact acceptance [B, k] of each child in draw order. p, q: [B, V] fp64.

    Costs prefix_count(q, k) prefixes per row, each O(log V); the caller keeps that bounded.
    """
    rows = max(1, _CHUNK // prefix_count(q, k))
    parts = [_exact_chunk(p[i : i + rows], q[i : i + rows], k) for i in range(0, p.shape[0], rows)]
    return torch.cat(parts) if parts else p.new_zeros(0, k)


def _exact_chunk(p: Tensor, q: Tensor, k: int) -> Tensor:
    support = (q > 0).sum(-1)  # [B]
    deepest = min(k, int(support.max()))
    law = _Law(p, q, k, int(support.max()))
    uniform = _uniform_phase(p, q, k, support)
    values = []
    prefixes = law.root()
    for length in range(deepest):
        step = law.step(prefixes)
        b = prefixes.b + step
        w = law.excess(b)
        values.append((prefixes.prob * (prefixes.w - w)).sum(-1))
        if length + 1 < deepest:
            prefixes = _extend_all(law, prefixes, step, b, w)
    exact_part = torch.stack(values, dim=-1)  # [B, deepest]
    exhausted = torch.arange(deepest, device=p.device) >= support[:, None]
    head = torch.where(exhausted, uniform[:, :deepest], exact_part)
    return torch.cat([head, uniform[:, deepest:]], dim=-1)


def _extend_all(law: _Law, prefixes: _Prefixes, step: Tensor, b: Tensor, w: Tensor) -> _Prefixes:
    """Every prefix followed by every candidate: [B, N] -> [B, N * S]."""
    batch, n, length = prefixes.tried.shape
    size = law.candidates.shape[1]
    tokens = law.candidates[:, None].expand(batch, n, size)
    mass = law.rejected(prefixes, step, tokens)
    total = mass.sum(-1, keepdim=True)
    share = torch.where(total > 0, mass / total, 0.0)
    tried = torch.cat(
        [prefixes.tried[:, :, None].expand(batch, n, size, length), tokens[..., None]], dim=-1
    )
    return _Prefixes(
        tried.reshape(batch, n * size, length + 1),
        (prefixes.prob[..., None] * share).reshape(batch, n * size),
        b[..., None].expand(batch, n, size).reshape(batch, n * size),
        w[..., None].expand(batch, n, size).reshape(batch, n * size),
    )


def sampled(p: Tensor, q: Tensor, k: int, samples: int, rng: torch.Generator | None) -> Tensor:
    """Unbiased samples [B, samples, k] of the acceptance of each child. p, q: [B, V] fp64.

    Only the rejected prefix is drawn, from its law given rejection; given the prefix the child's
    acceptance is exact. The first two children do not depend on the samples (they are exact), nor
    does any child drawn by the uniform rule.
    """
    support = (q > 0).sum(-1)
    law = _Law(p, q, k, 0)
    uniform = _uniform_phase(p, q, k, support)
    values = p.new_empty(p.shape[0], samples, k)
    values[:, :, :2] = exact(p, q, min(k, 2))[:, None]
    prefixes = law.root()
    prefixes = _Prefixes(*(x.expand(-1, samples, *x.shape[2:]) for x in prefixes))
    for length in range(k):
        step = law.step(prefixes)
        b = prefixes.b + step
        w = law.excess(b)
        if length >= 2:
            exhausted = (length >= support)[:, None]
            values[:, :, length] = torch.where(exhausted, uniform[:, length, None], prefixes.w - w)
        if length + 1 < k:
            u = torch.rand(w.shape, generator=rng, dtype=w.dtype, device=w.device)
            token = _draw_rejected(law, prefixes, step, u)
            tried = torch.cat([prefixes.tried, token[..., None]], dim=-1)
            prefixes = _Prefixes(tried, prefixes.prob, b, w)
    return values


def _draw_rejected(law: _Law, prefixes: _Prefixes, step: Tensor, u: Tensor) -> Tensor:
    """One rejected token [B, N] per prefix, in proportion to ``law.rejected``, in O(log V).

    Heavy tokens are weighed one by one. The light ones stand in order of p/q, where the mass is
    w c q up to p/q = b and (b + w c) q - p up to p/q = b + w c: both are sums of prefix sums.
    """
    batch, n = u.shape
    heavy = law.heavy[:, None].expand(batch, n, -1)
    heavy_cdf = law.rejected(prefixes, step, heavy).cumsum(-1)  # [B, N, heavy]
    light = _LightMass(law, prefixes, step)
    size = law.p.shape[1]
    whole = light(torch.full((batch, n), size, device=u.device))  # [B, N]
    point = u * (heavy_cdf[..., -1] + whole)
    slot = (heavy_cdf <= point[..., None]).sum(-1)  # == heavy count: a light token
    low, high = torch.zeros_like(slot), torch.full_like(slot, size)
    point_light = point - heavy_cdf[..., -1]
    for _ in range(size.bit_length()):  # smallest count whose mass exceeds the point
        middle = (low + high) // 2
        beyond = light(middle) > point_light
        low, high = torch.where(beyond, low, middle + 1), torch.where(beyond, middle, high)
    position = (low - 1).clamp(0, size - 1)
    light_token = law.excess.order.gather(-1, position)
    is_heavy = slot < heavy.shape[-1]
    slot = slot.clamp_max(heavy.shape[-1] - 1)
    return torch.where(is_heavy, heavy.gather(-1, slot[..., None])[..., 0], light_token)


class _LightMass:
    """Rejection mass of the first i tokens in order of p/q, heavy and tried ones left out."""

    def __init__(self, law: _Law, prefixes: _Prefixes, step: Tensor) -> None:
        excess = law.excess
        light = law.light_q.gather(-1, excess.order)
        self.q_sum = _prefix_sums(light)  # [B, V + 1]
        self.p_sum = _prefix_sums(torch.where(light > 0, excess.p, 0.0))
        self.step, self.slope = step, step + prefixes.b
        self.flat = excess.count(prefixes.b, inclusive=True)  # [B, N] tokens with R = 0
        self.end = torch.maximum(excess.count(self.slope, inclusive=False), self.flat)
        position = torch.empty_like(excess.order)
        position.scatter_(
            -1, excess.order, torch.arange(light.shape[1], device=light.device).expand_as(light)
        )
        self.tried_position = _gather_rows(position, prefixes.tried)  # [B, N, length]
        self.tried_q = _gather_rows(law.light_q, prefixes.tried)

    def __call__(self, count: Tensor) -> Tensor:
        tried = (self.tried_q * (self.tried_position < count[..., None])).sum(-1)
        flat = torch.minimum(count, self.flat)
        rest = torch.maximum(torch.minimum(count, self.end), self.flat)
        q_rest = self.q_sum.gather(-1, rest) - self.q_sum.gather(-1, self.flat)
        p_rest = self.p_sum.gather(-1, rest) - self.p_sum.gather(-1, self.flat)
        mass = self.step * (self.q_sum.gather(-1, flat) - tried)
        return (mass + self.slope * q_rest - p_rest).clamp_min(0)


def _uniform_phase(p: Tensor, q: Tensor, k: int, support: Tensor) -> Tensor:
    """[B, k]: acceptance of the children drawn after supp(q) is used up (child index >= support);
    0 before. Their residual is (p - d)+ off supp(q), drawn against 1 / (V - tried)."""
    outside = torch.where(q == 0, p, 0.0)
    w, d = outside.sum(-1), torch.zeros_like(support, dtype=p.dtype)
    values = []
    for child in range(k):
        active = child >= support
        lower = torch.where(active, d + w / (p.shape[1] - child), d)
        left = torch.where(active, (outside - lower[:, None]).clamp_min(0).sum(-1), w)
        values.append(w - left)
        w, d = left, lower
    return torch.stack(values, dim=-1)


def _gather_rows(rows: Tensor, index: Tensor) -> Tensor:
    """rows [B, V], index [B, N, T] -> [B, N, T]."""
    return rows.gather(-1, index.flatten(1)).view(index.shape)


def _prefix_sums(values: Tensor) -> Tensor:
    """[B, V] -> [B, V + 1]; entry i is the sum of values[:i]."""
    return torch.cat([values.new_zeros(values.shape[0], 1), values.cumsum(-1)], dim=-1)
