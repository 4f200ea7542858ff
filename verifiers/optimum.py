"""Optimal acceptance for a law of the drafts, and how far a rule falls short of it.

For drafts X with joint law Q, no lossless verifier accepts more often than

    alpha* = 1 + min over H of [ p(H) - Q(all drafts in H) ]         (H any set of tokens)

and some verifier reaches it: max-flow min-cut on drafts -> tokens (optimal transport with
membership cost: SpecTr, arXiv 2310.15141; the subset form and its greedy solution: 2502.18779).
For independent drafts and for drafts without replacement the best H is a prefix of the tokens in
ascending order of p/q, which makes it O(V log V).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .acceptance import Estimate, acceptance, rule_name
from .excess import checked_count, checked_pair, suffix_sums

DRAWS = ("iid", "wor")
_DRAW_OF = {"rrs": "iid", "k_seq": "iid", "rrs_wor": "wor"}
_LOG_TIME_START, _LOG_TIME_STEP = -32.0, 0.25  # grid of the quadrature over u = log t


def optimum(draw: str, p: Tensor, q: Tensor, num_children: int) -> Tensor:
    """Optimal acceptance [B] of any lossless verifier on k drafts from q.

    draw: "iid" (with replacement, any k) or "wor" (without replacement, uniform over the untried
        tokens once supp(q) is used up: the draw of rrs_wor; any k <= V. From k = 3 on a quadrature,
        accurate to 1e-10, with a loop over the supported tokens: seconds at V = 50000).
    p, q: [B, V] target and draft probabilities. Dtype of p kept, arithmetic in fp64.
    Raises ValueError as ``acceptance`` does, and for another ``draw``.
    """
    if draw not in DRAWS:
        raise ValueError(f"draw must be one of {DRAWS}, got {draw!r}")
    exact_p, exact_q = checked_pair(p, q)
    size = p.shape[1]
    k = checked_count(num_children, size if draw == "wor" else None, f"{draw} on {size} tokens")
    order = _by_ratio(exact_p, exact_q)
    sorted_p, sorted_q = exact_p.gather(-1, order), exact_q.gather(-1, order)
    if draw == "iid":
        inside = sorted_q.cumsum(-1).clamp_max(1) ** k
    elif k == 1:
        inside = sorted_q.cumsum(-1)
    elif k == 2:
        inside = _pairs_inside(sorted_q)
    else:
        inside = _many_inside(sorted_q, k)
    gap = (sorted_p.cumsum(-1) - inside).amin(-1)
    return (1 + gap.clamp_max(0)).clamp(0, 1).to(p.dtype)  # the empty H has gap 0


def regret(
    name: str,
    p: Tensor,
    q: Tensor,
    num_children: int,
    *,
    samples: int | None = None,
    rng: torch.Generator | None = None,
) -> Tensor | Estimate:
    """Optimum for the rule's own draw minus the acceptance the rule achieves, [B], never below 0.

    Children drawn deterministically (greedy, target_match) and by the hub rules (spechub, k_hub)
    leave nothing to gain: their acceptance is the optimum for their joint, so their regret is 0 by
    theorem. To hold a hub rule against another draw use ``optimum(draw, ...)`` directly.
    samples, rng: as for ``acceptance``; with samples an ``Estimate`` ([B], [B]): values may be
    negative by noise, and the standard error is the sum of the children's, an upper bound (their
    estimates share prefixes).
    Raises ValueError as ``acceptance`` and ``optimum`` do.
    """
    draw = _DRAW_OF.get(rule_name(name))
    wide = p.double(), q.double()  # a regret is a small difference of two numbers near 1
    achieved = acceptance(name, *wide, num_children, samples=samples, rng=rng)
    values = achieved.values if isinstance(achieved, Estimate) else achieved
    total = values.sum(-1)
    drawn = min(num_children, p.shape[1]) if draw == "wor" else num_children
    missed = total - total if draw is None else optimum(draw, *wide, drawn) - total
    if isinstance(achieved, Estimate):
        return Estimate(missed.to(p.dtype), achieved.stderr.sum(-1).to(p.dtype))
    return missed.clamp_min(0).to(p.dtype)


def membership_lp(p: Tensor, joint: dict[tuple[int, ...], float]) -> float:
    """Optimal acceptance by linear programming: the oracle for tiny vocabularies.

    p: [V] target; joint: probability of each tuple of drafts. Maximises the sum of pi(X -> y) over
    y in X subject to sum_y pi(X -> y) <= Q(X) and sum_X pi(X -> y) <= p_y (scipy HiGHS, imported
    here because only checks need it).
    """
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    pairs = [(row, y) for row, drafts in enumerate(joint) for y in sorted(set(drafts))]
    column = np.arange(len(pairs))
    rows = np.concatenate([[row for row, _ in pairs], [len(joint) + y for _, y in pairs]])
    matrix = coo_array(
        (np.ones(2 * len(pairs)), (rows, np.concatenate([column, column]))),
        shape=(len(joint) + p.shape[0], len(pairs)),
    )
    bound = np.concatenate([list(joint.values()), p.double().cpu().numpy()])
    result = linprog(-np.ones(len(pairs)), A_ub=matrix.tocsr(), b_ub=bound, method="highs")
    if not result.success:
        raise ValueError(f"the membership program was not solved: {result.message}")
    return float(-result.fun)


def _by_ratio(p: Tensor, q: Tensor) -> Tensor:
    """Order [B, V]: p/q ascending, ties (p/q = inf included) by p ascending; p = q = 0 costs
    nothing and comes first."""
    by_p = p.argsort(dim=-1, stable=True)
    ratio = torch.where(q > 0, p / q, torch.where(p > 0, torch.inf, 0.0)).gather(-1, by_p)
    return by_p.gather(-1, ratio.argsort(dim=-1, stable=True))


def _pairs_inside(q: Tensor) -> Tensor:
    """Probability [B, V] that two drafts without replacement lie in the first i + 1 tokens of q.

    sum over i in H of q_i (q(H) - q_i) / (1 - q_i), with the largest token taken apart so that
    1 - q_i never cancels; alone in supp(q) it is drawn first and the second draft is uniform.
    """
    size = q.shape[1]
    top = q.argmax(-1, keepdim=True)
    q_top, light = q.gather(-1, top), q.scatter(-1, top, 0.0)
    light_total = light.sum(-1, keepdim=True)
    index = torch.arange(size, device=q.device, dtype=q.dtype)
    has_top = index >= top  # [B, V]
    inside = light.cumsum(-1)
    share = torch.where(light_total > 0, inside / light_total, index / max(size - 1, 1))
    top_first = torch.where(has_top, q_top * share, 0.0)
    weight = light / (q_top + (light_total - light))
    light_first = weight.cumsum(-1) * (inside + torch.where(has_top, q_top, 0.0))
    return top_first + light_first - (weight * light).cumsum(-1)


def _many_inside(q: Tensor, k: int) -> Tensor:
    """As ``_pairs_inside`` for any k, by quadrature (error below 1e-12), O(V k) per node.

    Drafts without replacement are the first k of independent exponential clocks with rates q_i.
    They all lie in H iff k clocks of H ring before the first one outside, which has rate
    L = 1 - q(H): 1 - Q(H) = integral of L e^(-L t) P(fewer than k of H rang by t) dt. With t = e^u
    the integrand is analytic and decays at both ends: the trapezoid rule converges exponentially.
    """
    outside = suffix_sums(q)[:, 1:]  # [B, V]
    positive = outside[outside > 0]
    slowest = float(positive.min()) if positive.numel() else 1.0
    u = torch.arange(_LOG_TIME_START, math.log(45.0 / slowest), _LOG_TIME_STEP, dtype=q.dtype)
    t = u.to(q.device).exp()  # [M]
    columns = (q > 0).any(0)  # [V]; elsewhere nothing changes
    rang = q.new_zeros(q.shape[0], t.shape[0], k)  # [B, M, k]: P(j clocks rang), j < k
    rang[..., 0] = 1.0
    values = [torch.zeros_like(q[:, 0])]  # before the first supported token
    for column in columns.nonzero()[:, 0].tolist():
        silent = (-q[:, column, None] * t).exp()[..., None]
        moved = rang * (1 - silent)
        rang = rang * silent
        rang[..., 1:] += moved[..., :-1]
        rate = outside[:, column, None] * t
        missed = (rate * (-rate).exp() * rang.sum(-1)).sum(-1) * _LOG_TIME_STEP
        values.append(1 - missed)
    inside = torch.stack(values, dim=-1)[:, columns.cumsum(0)]
    return torch.where(outside > 0, inside, _uniform_inside(q, k))


def _uniform_inside(q: Tensor, k: int) -> Tensor:
    """[B, V]: chance that the draws left once supp(q) is used up fall in the first i + 1."""
    size = q.shape[1]
    support = (q > 0).sum(-1, keepdim=True)
    inside = torch.ones_like(q)
    count = torch.arange(1, size + 1, device=q.device, dtype=q.dtype)
    for drawn in range(k):
        share = (count - drawn).clamp_min(0) / (size - drawn)
        inside = torch.where(drawn >= support, inside * share, inside)
    return inside
