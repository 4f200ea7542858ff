"""Exact acceptance of each drafted child at one node, without sampling a token.

``acceptance`` answers what a tree search and a regret report need: the probability that child j (in
draw order) is the accepted one, over the draw of the children and the verifier's coins. The entries
of a row are probabilities of disjoint events: their sum is the chance that any child is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import prefix_law
from .excess import ExcessMass, checked_count, checked_pair

_SPARE_SLOTS = {"greedy": 0, "target_match": 0, "rrs_wor": 0, "k_hub": 1}
_BISECTIONS = 60  # of the interval [1, k]: down to fp64 resolution


class Estimate(NamedTuple):
    """A value and its standard error, both [B, k]. Entries known exactly have standard error 0."""

    values: Tensor
    stderr: Tensor


def acceptance(
    name: str,
    p: Tensor,
    q: Tensor,
    num_children: int,
    *,
    samples: int | None = None,
    rng: torch.Generator | None = None,
) -> Tensor | Estimate:
    """Unconditional acceptance probability [B, k] of each of k children, in draw order.

    name: a rule (``rules()``). ``NAME/traversal`` answers for the token-level rule NAME: a lower
        bound for the sequence-level walker, whose acceptance depends on the whole tree.
    p, q: [B, V] target and draft probabilities after temperature and filters; supp(q) is q > 0 (a
        row whose smallest probabilities underflowed has lost those tokens: use fp64).
    num_children: k >= 1 children planned at the node. A slot in which the rule draws nothing has 0.
    samples, rng: only rrs_wor needs them, for k >= 3 children on rows with too many tokens to
        enumerate (S^(k-1) > 10^6, S the most supported tokens of a row). Then ``samples`` rejected
        prefixes per row are drawn from ``rng`` (None: torch's global generator).

    Returns a plain Tensor, exact, in the dtype of p; with ``samples`` always an ``Estimate``
    (values, stderr), unbiased, of standard error 0 wherever the value is exact all the same. All
    arithmetic is fp64 and O(V log V) per row, plus O(log V) per enumerated or sampled prefix.

    Raises ValueError: unknown name; more children than the rule takes; rows that are no
    distributions (NaN, negative, sum off: the message names the row); shapes that disagree; rrs_wor
    beyond enumeration without ``samples``.

    Laws: greedy and target_match with the k largest of q as children (which of tied tokens comes
    first is open; here the lower id), SpecInfer (arXiv 2305.09781); rrs, the same paper; rrs_wor,
    Sequoia (2402.12374); k_seq, SpecTr (2310.15141); spechub, 2411.05289; k_hub, the greedy
    multi-draft of 2502.18779.
    """
    rule = rule_name(name)
    k = checked_count(num_children, 2 if rule == "spechub" else None, rule)
    exact_p, exact_q = checked_pair(p, q)
    if samples is not None and samples < 2:
        raise ValueError(f"samples must be at least 2, got {samples}")
    # At most V children are live. (In k_hub beyond that all tokens are hubs and slot 0 is dead.)
    k = min(k, p.shape[1] + _SPARE_SLOTS.get(rule, k))
    if rule == "rrs_wor" and prefix_law.prefix_count(exact_q, k) > prefix_law.MAX_PREFIXES:
        found = _sampled_rrs_wor(exact_p, exact_q, k, samples, rng)
    else:
        values = _RULES[rule](exact_p, exact_q, k)
        found = Estimate(values, torch.zeros_like(values))
    dead = (0, num_children - k)  # slots beyond the vocabulary
    found = Estimate(*(nn.functional.pad(part, dead).to(p.dtype) for part in found))
    return found.values if samples is None else found


def rules() -> tuple[str, ...]:
    """Names that ``acceptance`` knows, without the ``/traversal`` forms."""
    return tuple(_RULES)


def rule_name(name: str) -> str:
    """The token-level rule of a verifier's name; ValueError when it is unknown."""
    rule = name.removesuffix("/traversal")
    if rule not in _RULES or (rule == "greedy" and rule != name):
        raise ValueError(f"no analytic acceptance for {name!r}; known rules: {', '.join(_RULES)}")
    return rule


def _sampled_rrs_wor(
    p: Tensor, q: Tensor, k: int, samples: int | None, rng: torch.Generator | None
) -> Estimate:
    if samples is None:
        raise ValueError(
            f"rrs_wor with {k} children on {p.shape[1]} tokens is too large to enumerate "
            f"(over {prefix_law.MAX_PREFIXES} rejected prefixes): pass samples= (and rng=)"
        )
    values = prefix_law.sampled(p, q, k, samples, rng)  # [B, samples, k]
    shifted = values - values[:, :1]  # equal samples: a standard error of 0, not of rounding noise
    return Estimate(values[:, 0] + shifted.mean(1), shifted.std(1) / samples**0.5)


def _top(q: Tensor, k: int) -> Tensor:
    """Ids [B, k] of the k largest entries, ties by lower id (topk promises no order of ties)."""
    return q.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def _on_top(values: Tensor, q: Tensor, k: int) -> Tensor:
    """Entries [B, k] of values [B, V] at the k largest of q; 0 where q = 0: there is no child."""
    top = _top(q, k)
    return torch.where(q.gather(-1, top) > 0, values.gather(-1, top), 0.0)


def _greedy(p: Tensor, q: Tensor, k: int) -> Tensor:
    """1 for the child that is argmax p."""
    best = torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1.0)
    return _on_top(best, q, k)


def _target_match(p: Tensor, q: Tensor, k: int) -> Tensor:
    """p of each child: the children are distinct and exactly one token is drawn from p."""
    return _on_top(p, q, k)


def _rrs(p: Tensor, q: Tensor, k: int) -> Tensor:
    """After j rejections the residual is (p - b q)+ / w with b the sum of all w so far: see
    ``excess``; a child is accepted with the mass the residual loses."""
    w, b = p.new_ones(p.shape[0]), p.new_zeros(p.shape[0])
    values = []
    for _ in range(k):
        b = b + w
        left = (p - b[:, None] * q).clamp_min(0).sum(-1)
        values.append(w - left)
        w = left
    return torch.stack(values, dim=-1)


def _k_seq(p: Tensor, q: Tensor, k: int) -> Tensor:
    """miss^j (1 - miss), where 1 - miss = beta = sum min(q, p/g) at the smallest feasible g.

    Feasible, sum_{j<k} (1 - beta)^j <= g, is 1 - miss^k <= g beta = 1 - E(g). Written as
    E(g) <= miss^k with miss = (g - 1 + E(g)) / g nothing cancels, however alike p and q are.
    """
    excess = ExcessMass(p, q)

    def miss(g: Tensor) -> Tensor:
        return ((g - 1 + excess(g)) / g).clamp(0, 1)

    low, high = p.new_ones(p.shape[0], 1), p.new_full((p.shape[0], 1), float(k))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        feasible = excess(middle) <= miss(middle) ** k
        low, high = torch.where(feasible, low, middle), torch.where(feasible, middle, high)
    missed = miss(high)  # [B, 1]
    return (1 - missed) * missed ** torch.arange(k, device=p.device, dtype=p.dtype)


def _spechub(p: Tensor, q: Tensor, k: int) -> Tensor:
    """Both draws (i, a) and (a, i), order-aware: see verifiers.spechub for the accept test."""
    if k == 1:
        return _rrs(p, q, 1)
    hub = q.argmax(-1, keepdim=True)
    q_hub, p_hub = q.gather(-1, hub)[:, 0], p.gather(-1, hub)[:, 0]
    rest_q, rest_p = q.scatter(-1, hub, 0.0), p.scatter(-1, hub, 0.0)
    rest = rest_q.sum(-1)
    after_hub = q_hub[:, None] * torch.where(rest[:, None] > 0, rest_q / rest[:, None], 0.0)
    over = (rest_p - rest_q).clamp_min(0)  # what (i, a) leaves of p_i
    lost_first = (rest_q - rest_p).clamp_min(0).sum(-1)  # mass of (i, a) with i rejected
    lost_second = (after_hub - over).clamp_min(0).sum(-1)  # mass of (a, i) with i rejected
    first = torch.minimum(rest_q, rest_p).sum(-1) + torch.minimum(lost_second, p_hub)
    second = torch.minimum(after_hub, over).sum(-1) + torch.minimum(
        lost_first, (p_hub - lost_second).clamp_min(0)
    )
    alone = rest == 0  # supp(q) is the hub: one live child
    first = torch.where(alone, p_hub, first)
    return torch.stack([first, torch.where(alone, 0.0, second)], dim=-1)


def _k_hub(p: Tensor, q: Tensor, k: int) -> Tensor:
    """The sampled child overlaps p off the hubs; each hub h is accepted with probability p_h."""
    hubs = _top(q, k - 1)
    rest_q, rest_p = q.scatter(-1, hubs, 0.0), p.scatter(-1, hubs, 0.0)
    rest = rest_q.sum(-1, keepdim=True)
    q_sampled = torch.where(rest > 0, rest_q / rest, 0.0)
    sampled = torch.minimum(rest_p, q_sampled).sum(-1, keepdim=True)
    return torch.cat([sampled, _on_top(p, q, k - 1)], dim=-1)


_RULES: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "greedy": _greedy,
    "target_match": _target_match,
    "rrs": _rrs,
    "rrs_wor": prefix_law.exact,
    "k_seq": _k_seq,
    "spechub": _spechub,
    "k_hub": _k_hub,
}
