"""Every rule at one node by enumeration: all tuples of drafts, all coins, in plain floats.

Written from the specification of the rules and from nothing else: no code is shared with the
package, and no formula is simplified. ``enumerate_node`` also returns the law of the token that is
emitted, so the enumeration is itself proven lossless before anything is compared with it.
"""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction

import torch


def degenerate_pairs():
    """Pairs (label, p, q) on tiny vocabularies: [V] lists."""
    return [
        ("worked example", [0.20, 0.10, 0.30, 0.40], [0.50, 0.30, 0.15, 0.05]),
        ("good draft", [0.4, 0.2, 0.3, 0.1], [0.50, 0.30, 0.15, 0.05]),
        ("equal rows", [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]),
        ("one-hot q", [0.4, 0.3, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0]),
        ("one-hot p on the hub", [0.0, 1.0, 0.0, 0.0], [0.1, 0.6, 0.2, 0.1]),
        ("one-hot p off the hub", [0.0, 0.0, 1.0, 0.0], [0.1, 0.6, 0.2, 0.1]),
        ("one-hot p outside supp(q)", [0.0, 0.0, 0.0, 1.0], [0.5, 0.3, 0.2, 0.0]),
        ("both one-hot, equal", [0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
        ("both one-hot, disjoint", [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
        ("two-token q", [0.2, 0.2, 0.3, 0.3], [0.6, 0.0, 0.4, 0.0]),
        ("two-token q, p elsewhere", [0.0, 0.7, 0.0, 0.3], [0.6, 0.0, 0.4, 0.0]),
        ("three supported of five", [0.1, 0.2, 0.3, 0.2, 0.2], [0.5, 0.0, 0.3, 0.2, 0.0]),
        ("zeros in p", [0.5, 0.0, 0.5, 0.0], [0.1, 0.2, 0.3, 0.4]),
        ("ties at the top of q", [0.1, 0.2, 0.3, 0.4], [0.35, 0.35, 0.15, 0.15]),
        ("uniform q", [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]),
        ("nearly one-hot q", [0.3, 0.3, 0.2, 0.2], [1 - 6e-13, 3e-13, 2e-13, 1e-13]),
        ("very nearly one-hot q", [0.3, 0.3, 0.2, 0.2], [1.0, 3e-20, 2e-20, 1e-20]),
        ("peaked tail of q", [0.25, 0.25, 0.25, 0.25], [0.5, 0.5 - 1e-12, 9e-13, 1e-13]),
        ("two tokens", [0.3, 0.7], [0.8, 0.2]),
        ("one token", [1.0], [1.0]),
    ]


def random_pairs(count, seed):
    """Pairs ([V], [V]) of random rows: peaked, flat, filtered on either side."""
    generator = torch.Generator().manual_seed(seed)

    def row(size):
        scale = (0.5, 2.0, 5.0)[int(torch.randint(3, (1,), generator=generator))]
        logits = scale * torch.randn(size, generator=generator, dtype=torch.float64)
        keep = int(torch.randint(1, size + 1, (1,), generator=generator))
        if torch.rand(1, generator=generator) < 0.5:
            hidden = torch.randperm(size, generator=generator)[keep:]
            logits[hidden] = -torch.inf
        return logits.softmax(0).tolist()

    sizes = torch.randint(2, 6, (count,), generator=generator).tolist()
    return [(row(size), row(size)) for size in sizes]


def normal(values):
    total = sum(values)
    return [v / total for v in values]


def enumerate_node(name, p, q, k):
    """(acceptance [k] of each child in draw order, law [V] of the emitted token)."""
    accepted, law = [0.0] * k, [0.0] * len(p)
    accept = ACCEPT[name]
    for drafts, weight in joint_law(name, q, k).items():
        shares, residual = accept(p, q, drafts, k)
        left = 1.0
        for slot, share in shares:  # in the order the rule tries them
            accepted[slot] += weight * left * share
            law[drafts[slot]] += weight * left * share
            left *= 1.0 - share
        for token, mass in enumerate(residual):
            law[token] += weight * left * mass
    return accepted, law


# ------------------------------------------------------------------------------------- draws


def joint_law(name, q, k):
    """{drafts: probability}; a slot with no child is None."""
    if name in ("rrs", "k_seq"):
        joint = {}
        for drafts in itertools.product(range(len(q)), repeat=k):
            weight = 1.0
            for token in drafts:
                weight *= q[token]
            joint[drafts] = weight
        return {d: w for d, w in joint.items() if w > 0}
    if name == "rrs_wor":
        return without_replacement(q, k)
    if name == "spechub":
        return hub_pairs(q, k)
    if name == "k_hub":
        return hubs_and_one(q, k)
    top = likeliest(q, k)
    return {tuple(top + [None] * (k - len(top))): 1.0}


def likeliest(q, k):
    ranked = sorted(range(len(q)), key=lambda token: -q[token])
    return [token for token in ranked[:k] if q[token] > 0]


def without_replacement(q, k):
    joint = {}
    for drafts in itertools.permutations(range(len(q)), min(k, len(q))):
        weight = 1.0
        for position, token in enumerate(drafts):
            weight *= proposal_without(q, drafts[:position])[token]
        if weight > 0:
            joint[drafts + (None,) * (k - len(drafts))] = weight
    return joint


def proposal_without(q, tried):
    left = [0.0 if token in tried else mass for token, mass in enumerate(q)]
    if sum(left) == 0:
        left = [0.0 if token in tried else 1.0 for token in range(len(q))]
    return normal(left)


def hub_pairs(q, k):
    if k == 1:
        return {(token,): mass for token, mass in enumerate(q) if mass > 0}
    a = likeliest(q, 1)[0]
    off = off_hubs(q, [a])
    if off is None:
        return {(a, None): 1.0}
    joint = {(i, a): q[i] for i in range(len(q)) if i != a and q[i] > 0}
    joint.update({(a, i): q[a] * off[i] for i in range(len(q)) if off[i] > 0})
    return joint


def hubs_and_one(q, k):
    hubs = likeliest(q, k - 1)
    slots = hubs + [None] * (k - 1 - len(hubs))
    off = off_hubs(q, hubs)
    if off is None:
        return {(None, *slots): 1.0}
    return {(i, *slots): mass for i, mass in enumerate(off) if mass > 0}


def off_hubs(q, hubs):
    """q~, or None when supp(q) is all hubs."""
    rest = [0.0 if token in hubs else mass for token, mass in enumerate(q)]
    return normal(rest) if sum(rest) > 0 else None


# ----------------------------------------------------------------------------------- accepts
# Each returns ([(slot, share given that all before it failed)], residual law [V]).


def residual_or_target(residual, p):
    return normal(residual) if sum(residual) > 0 else p


def accept_recursive(p, drafts, proposal):
    r, shares = list(p), []
    for slot, token in enumerate(drafts):
        if token is None:
            continue
        q_cur = proposal(drafts[:slot])
        share = min(1.0, r[token] / q_cur[token])
        shares.append((slot, share))
        left = [max(a - b, 0.0) for a, b in zip(r, q_cur, strict=True)]
        if share >= 1.0 or sum(left) == 0:
            break
        r = normal(left)
    return shares, r


def accept_rrs(p, q, drafts, k):
    return accept_recursive(p, drafts, lambda tried: q)


def accept_rrs_wor(p, q, drafts, k):
    return accept_recursive(p, drafts, lambda tried: proposal_without(q, tried))


@functools.cache
def k_seq_constants(p, q, k):
    """(g*, S). Rational numbers: where p and q are alike, floats cannot tell feasible from not."""
    p, q = (normal([Fraction(x) for x in values]) for values in (p, q))

    def offers(g):
        beta = sum(min(b, a / g) for a, b in zip(p, q, strict=True))
        return sum((1 - beta) ** j for j in range(k))

    low, high = Fraction(1), Fraction(k)
    for _ in range(56):
        middle = (low + high) / 2
        low, high = (low, middle) if offers(middle) <= middle else (middle, high)
    return float(high), float(offers(high))


def accept_k_seq(p, q, drafts, k):
    g, s = k_seq_constants(tuple(p), tuple(q), k)
    shares = [(slot, min(1.0, p[x] / (g * q[x]))) for slot, x in enumerate(drafts)]
    residual = [max(a - min(b, a / g) * s, 0.0) for a, b in zip(p, q, strict=True)]
    return shares, residual_or_target(residual, p)


def accept_spechub(p, q, drafts, k):
    if k == 1:
        left = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
        return [(0, min(1.0, p[drafts[0]] / q[drafts[0]]))], residual_or_target(left, p)
    a = likeliest(q, 1)[0]
    others = [i for i in range(len(p)) if i != a]
    if drafts[1] is None:
        residual = [0.0 if i == a else p[i] for i in range(len(p))]
        return [(0, p[a])], residual_or_target(residual, p)
    off = off_hubs(q, [a])
    p1 = {i: max(p[i] - q[i], 0.0) for i in others}
    s_ia = sum(max(q[i] - p[i], 0.0) for i in others)
    s_ai = sum(max(q[a] * off[i] - p1[i], 0.0) for i in others)
    residual = [0.0 if i == a else max(p[i] - off[i], 0.0) for i in range(len(p))]
    if drafts[1] == a:
        i = drafts[0]
        hub = 1.0 if s_ia == 0 else min(1.0, max(p[a] - s_ai, 0.0) / s_ia)
        shares = [(0, min(1.0, p[i] / q[i])), (1, hub)]
    else:
        i = drafts[1]
        hub = 1.0 if s_ai == 0 else min(1.0, p[a] / s_ai)
        shares = [(1, min(1.0, p1[i] / (q[a] * off[i]))), (0, hub)]
    return shares, residual_or_target(residual, p)


def accept_k_hub(p, q, drafts, k):
    hubs = likeliest(q, k - 1)
    off = off_hubs(q, hubs) or [0.0] * len(q)
    others = [j for j in range(len(p)) if j not in hubs]
    r = 1.0 - sum(min(p[j], off[j]) for j in others)
    residual = [max(p[j] - off[j], 0.0) if j in others else 0.0 for j in range(len(p))]
    shares = []
    if drafts[0] is not None:
        shares.append((0, min(1.0, p[drafts[0]] / off[drafts[0]])))
    for slot, hub in enumerate(drafts[1 : 1 + len(hubs)], start=1):
        shares.append((slot, 0.0 if r <= 0 else min(1.0, p[hub] / r)))
        r -= p[hub]
    return shares, residual_or_target(residual, p)


def accept_target_match(p, q, drafts, k):
    left, shares = 1.0, []
    for slot, token in enumerate(drafts):
        if token is not None:
            shares.append((slot, 0.0 if left <= 0 else min(1.0, p[token] / left)))
            left -= p[token]
    residual = [0.0 if token in drafts else mass for token, mass in enumerate(p)]
    return shares, residual_or_target(residual, p)


def accept_greedy(p, q, drafts, k):
    best = p.index(max(p))
    shares = [
        (slot, float(token == best)) for slot, token in enumerate(drafts) if token is not None
    ]
    return shares, [float(token == best) for token in range(len(p))]


ACCEPT = {
    "greedy": accept_greedy,
    "target_match": accept_target_match,
    "rrs": accept_rrs,
    "rrs_wor": accept_rrs_wor,
    "k_seq": accept_k_seq,
    "spechub": accept_spechub,
    "k_hub": accept_k_hub,
}
