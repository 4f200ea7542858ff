"""Optimal acceptance and regret: oracle values, all subsets, the membership program."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from brute import degenerate_pairs, joint_law, random_pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.acceptance import Estimate, acceptance, rules
from verifiers.optimum import _many_inside, _pairs_inside, membership_lp, optimum, regret
from verifiers.prefix_law import exact

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "oracle.json").read_text())["cases"]
DRAW_RULE = {"iid": "rrs", "wor": "rrs_wor"}


def row(values):
    return torch.tensor([values], dtype=torch.float64)


def drafts_only(joint):
    """{drafts that exist: probability}, as sets would do: dead slots dropped."""
    found = {}
    for drafts, weight in joint.items():
        key = tuple(token for token in drafts if token is not None)
        found[key] = found.get(key, 0.0) + weight
    return found


def best_subset(p, joint):
    best = 0.0
    for count in range(1, len(p) + 1):
        for chosen in itertools.combinations(range(len(p)), count):
            inside = sum(weight for drafts, weight in joint.items() if set(drafts) <= set(chosen))
            best = min(best, sum(p[token] for token in chosen) - inside)
    return 1.0 + best


def cases():
    pairs = [(p, q) for _, p, q in degenerate_pairs()] + random_pairs(40, seed=17)
    return [(p, q, k) for p, q in pairs for k in (1, 2, 3, 4) if k <= len(p)]


def test_oracle():
    for case in ORACLE:
        p, q = row(case["p"]), row(case["q"])
        for draw in ("iid", "wor"):
            expected = case[f"optimum_{draw}_k2"]
            assert optimum(draw, p, q, 2).item() == pytest.approx(expected, abs=1e-9)


def test_worked_example():
    q, p = row([0.50, 0.30, 0.15, 0.05]), row([0.20, 0.10, 0.30, 0.40])
    assert optimum("iid", p, q, 2).item() == pytest.approx(0.660, abs=1e-12)
    assert optimum("wor", p, q, 2).item() == pytest.approx(0.73025210, abs=1e-8)
    assert regret("rrs", p, q, 2).item() == pytest.approx(0.060, abs=1e-12)


@pytest.mark.parametrize("draw", ["iid", "wor"])
def test_prefix_formula_is_the_best_subset(draw):
    for p, q, k in cases():
        joint = drafts_only(joint_law(DRAW_RULE[draw], q, k))
        found = optimum(draw, row(p), row(q), k).item()
        assert found == pytest.approx(best_subset(p, joint), abs=1e-9), (p, q, k)


@pytest.mark.parametrize("draw", ["iid", "wor"])
def test_membership_program(draw):
    for p, q, k in cases()[::3]:
        joint = drafts_only(joint_law(DRAW_RULE[draw], q, k))
        solved = membership_lp(row(p)[0], joint)
        assert optimum(draw, row(p), row(q), k).item() == pytest.approx(solved, abs=1e-7), (p, q, k)


@pytest.mark.parametrize("name", ["spechub", "k_hub", "target_match"])
def test_hub_rules_reach_the_optimum_of_their_joint(name):
    for p, q, k in cases()[::2]:
        if name == "spechub" and k > 2:
            continue
        joint = drafts_only(joint_law(name, q, k))
        achieved = acceptance(name, row(p), row(q), k).sum().item()
        assert achieved == pytest.approx(membership_lp(row(p)[0], joint), abs=1e-7), (p, q, k)
        assert regret(name, row(p), row(q), k).item() == 0


@pytest.mark.parametrize("name", rules())
def test_regret_is_what_is_missed(name):
    for p, q, k in cases()[::2]:
        if name in ("greedy", "spechub") and k > 2:
            continue
        joint = drafts_only(joint_law(name, q, k))
        found = regret(name, row(p), row(q), k).item()
        if name == "greedy":  # deterministic: nothing to gain at T = 0, where it is used
            assert found == 0
            continue
        missed = best_subset(p, joint) - acceptance(name, row(p), row(q), k).sum().item()
        assert found == pytest.approx(missed, abs=1e-9), (p, q, k)


@pytest.mark.parametrize("draw", ["iid", "wor"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_rows_of_a_batch_are_independent(draw, k):
    pairs = [(p, q) for _, p, q in degenerate_pairs() if len(p) == 4]
    p, q = (torch.tensor(rows, dtype=torch.float64) for rows in zip(*pairs, strict=True))
    together = optimum(draw, p, q, k)
    for i in range(len(pairs)):
        alone = optimum(draw, p[i : i + 1], q[i : i + 1], k)
        assert together[i].item() == pytest.approx(alone.item(), abs=1e-12)


def test_quadrature_agrees_with_the_closed_form_at_a_larger_vocabulary():
    """The general form at k = 2, peaked and flat rows of 300 tokens."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 300, generator=generator, dtype=torch.float64)
    q = (logits * torch.tensor([[0.5], [4.0], [12.0]])).softmax(-1)
    assert torch.allclose(_many_inside(q, 2), _pairs_inside(q), rtol=0, atol=1e-12)


def test_dtype_is_kept():
    p, q = torch.rand(2, 2, 6).softmax(-1)
    assert optimum("iid", p, q, 2).dtype == torch.float32
    assert regret("rrs_wor", p, q, 3).dtype == torch.float32


def test_sampled_regret():
    generator = torch.Generator().manual_seed(2)
    p, q = torch.randn(2, 1, 1100, generator=generator, dtype=torch.float64).softmax(-1)
    with pytest.raises(ValueError, match="samples="):
        regret("rrs_wor", p, q, 3)
    found = regret("rrs_wor", p, q, 3, samples=2000, rng=torch.Generator().manual_seed(0))
    assert isinstance(found, Estimate)
    assert found.values.shape == found.stderr.shape == (1,)
    assert 0 < found.stderr < 1e-3
    missed = optimum("wor", p, q, 3) - exact(p, q, 3).sum(-1)
    assert (found.values - missed).abs() < 5 * found.stderr


@pytest.mark.parametrize(
    ("draw", "k", "message"),
    [("hub", 2, "must be one of"), ("wor", 6, "takes at most 5"), ("iid", 0, "at least 1")],
)
def test_bad_arguments(draw, k, message):
    p = torch.full((1, 5), 0.2)
    with pytest.raises(ValueError, match=message):
        optimum(draw, p, p, k)


def test_bad_rows_are_named():
    p = torch.full((2, 5), 0.2)
    q = p.clone()
    q[1, 0] = torch.nan
    with pytest.raises(ValueError, match="row 1 of q holds a NaN"):
        regret("rrs", p, q, 2)


@st.composite
def rows(draw):
    size = draw(st.integers(2, 7))
    weights = st.lists(
        st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=size, max_size=size
    ).filter(lambda w: sum(w) > 0)
    return [row([x / sum(w) for x in w]) for w in (draw(weights), draw(weights))]


@settings(max_examples=60, deadline=None)
@given(rows(), st.integers(1, 3))
def test_laws(pair, k):
    p, q = pair
    k = min(k, p.shape[1])
    single = torch.minimum(p, q).sum().item()
    for draw, name in DRAW_RULE.items():
        best = optimum(draw, p, q, k).item()
        assert best >= acceptance(name, p, q, k).sum().item() - 1e-9
        assert best >= single - 1e-9  # more drafts never hurt
        assert best <= 1
    assert optimum("iid", p, q, 1).item() == pytest.approx(single, abs=1e-12)
    assert optimum("wor", p, q, 1).item() == pytest.approx(single, abs=1e-12)
