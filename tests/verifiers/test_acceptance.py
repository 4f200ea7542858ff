"""Analytic acceptance: oracle, enumeration, the package's own rules, estimates, bad input."""

import json
from pathlib import Path

import pytest
import torch
from brute import ACCEPT, degenerate_pairs, enumerate_node, random_pairs
from hypothesis import given, settings
from hypothesis import strategies as st

import verifiers
from verifiers import prefix_law
from verifiers.acceptance import Estimate, acceptance, rules
from verifiers.optimum import optimum

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "oracle.json").read_text())["cases"]
LOSSLESS = [name for name in ACCEPT if name != "greedy"]  # greedy is for T = 0: p one-hot
NEARLY_ONE_HOT = ("nearly one-hot q", "very nearly one-hot q", "peaked tail of q")


def row(values, dtype=torch.float64):
    return torch.tensor([values], dtype=dtype)


def counts(name, size):
    return (1, 2) if name == "spechub" else (1, 2, 3, min(5, size + 1))


def random_row(size, seed, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(1, size, generator=generator, dtype=torch.float64)).softmax(-1)


def test_oracle():
    for case in ORACLE:
        p, q = row(case["p"]), row(case["q"])
        assert acceptance("rrs", p, q, 1).item() == pytest.approx(case["single"], abs=1e-9)
        assert acceptance("spechub", p, q, 2)[0].tolist() == pytest.approx(
            case["spechub"], abs=1e-9
        )
        for k in (2, 3):
            for name in ("rrs", "rrs_wor"):
                found = acceptance(name, p, q, k)[0].tolist()
                assert found == pytest.approx(case[name][str(k)], abs=1e-9)
            for name in ("k_seq", "k_hub"):
                total = acceptance(name, p, q, k).sum().item()
                assert total == pytest.approx(case[name][str(k)], abs=1e-9)


def test_worked_example():
    q = row([0.50, 0.30, 0.15, 0.05])
    p = row([0.20, 0.10, 0.30, 0.40])
    assert acceptance("spechub", p, q, 2)[0].tolist() == pytest.approx([0.50, 0.20], abs=1e-12)
    totals = {"rrs": 0.600, "rrs_wor": 0.6771428571, "k_hub": 0.700, "target_match": 0.30}
    for name, total in totals.items():
        assert acceptance(name, p, q, 2).sum().item() == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("name", LOSSLESS)
def test_enumeration_is_lossless(name):
    for label, p, q in degenerate_pairs():
        if label in NEARLY_ONE_HOT:
            continue  # plain floats cancel there; the comparison below takes care of them
        for k in counts(name, len(p)):
            _, law = enumerate_node(name, p, q, k)
            assert law == pytest.approx(p, abs=1e-12), (label, k)


@pytest.mark.parametrize("name", ACCEPT)
def test_degenerate_rows_match_enumeration(name):
    for label, p, q in degenerate_pairs():
        for k in counts(name, len(p)):
            expected, _ = enumerate_node(name, p, q, k)
            found = acceptance(name, row(p), row(q), k)[0].tolist()
            assert found == pytest.approx(expected, abs=1e-9), (label, k)


@pytest.mark.parametrize("name", ACCEPT)
def test_random_rows_match_enumeration(name):
    for p, q in random_pairs(40, seed=7):
        for k in counts(name, len(p)):
            expected, _ = enumerate_node(name, p, q, k)
            found = acceptance(name, row(p), row(q), k)[0].tolist()
            assert found == pytest.approx(expected, abs=1e-9), (p, q, k)


@pytest.mark.parametrize("name", ACCEPT)
def test_rows_of_a_batch_are_independent(name):
    pairs = [(p, q) for _, p, q in degenerate_pairs() if len(p) == 4]
    p, q = (torch.tensor(rows, dtype=torch.float64) for rows in zip(*pairs, strict=True))
    k = 2 if name == "spechub" else 4
    together = acceptance(name, p, q, k)
    for i in range(len(pairs)):
        alone = acceptance(name, p[i : i + 1], q[i : i + 1], k)
        assert torch.allclose(together[i], alone[0], rtol=0, atol=1e-14)


def test_chunks_of_a_batch_agree_with_the_whole(monkeypatch):
    p = torch.cat([random_row(12, seed) for seed in range(5)])
    q = torch.cat([random_row(12, seed + 50) for seed in range(5)])
    whole = acceptance("rrs_wor", p, q, 3)
    monkeypatch.setattr(prefix_law, "_CHUNK", 1)
    assert torch.equal(acceptance("rrs_wor", p, q, 3), whole)


@pytest.mark.parametrize("name", LOSSLESS)
def test_matches_the_rules_of_the_package(name):
    """Mean budget of the children over many draws by the rule itself: the analysis describes the
    rule that the engine runs, draw order and dead slots included."""
    rule = verifiers.RULES[name]()
    draws, k = 4_000, 2 if name == "spechub" else 3
    chosen = ("worked example", "one-hot q", "two-token q", "three supported of five")
    for label, p, q in degenerate_pairs():
        if label not in chosen:
            continue
        expected = acceptance(name, row(p), row(q), k)[0]
        target, draft = (
            verifiers.Rows(row(x).log().expand(draws, -1), row(x).expand(draws, -1)) for x in (p, q)
        )
        generator = torch.Generator().manual_seed(3)
        uniforms = torch.rand(draws, k, generator=generator, dtype=torch.float64)
        drafted = rule.draw(draft, (k,) * draws, uniforms)
        plan = rule.plan(target, draft, drafted, torch.ones(draws, dtype=torch.float64))
        budgets = plan.budgets.gather(1, plan.order)
        before = torch.cat([torch.ones(draws, 1), (1 - budgets).cumprod(1)[:, :-1]], 1)
        reached = torch.zeros_like(budgets).scatter(1, plan.order, budgets * before)
        error = (reached.mean(0) - expected).abs()
        assert (error <= 5 * reached.std(0) / draws**0.5 + 1e-12).all(), label


# ----------------------------------------------------------------------- estimates for rrs_wor


@pytest.mark.parametrize("scale", [0.3, 2.0, 8.0])
def test_sampled_prefixes_are_unbiased(scale):
    size, k, samples = 7, 5, 100_000
    p, q = random_row(size, 1, scale), random_row(size, 2, scale)
    exact = prefix_law.exact(p, q, k)
    values = prefix_law.sampled(p, q, k, samples, torch.Generator().manual_seed(5))
    assert torch.equal(values[:, :, :2].amin(1), values[:, :, :2].amax(1))
    assert torch.allclose(values[0, 0, :2], exact[0, :2], rtol=0, atol=1e-12)
    error = (values.mean(1) - exact).abs()
    assert (error <= 5 * values.std(1) / samples**0.5 + 1e-12).all(), error


@pytest.mark.parametrize(
    ("p", "q"),
    [([0.3, 0.3, 0.2, 0.2], [1 - 6e-13, 3e-13, 2e-13, 1e-13]),
     ([0.1, 0.1, 0.1, 0.2, 0.2, 0.3], [0.5, 0.0, 0.3, 0.2, 0.0, 0.0]),
     ([0.25, 0.25, 0.25, 0.25], [0.5, 0.5 - 1e-12, 9e-13, 1e-13])],
)  # fmt: skip
def test_sampled_prefixes_on_degenerate_rows(p, q):
    exact = prefix_law.exact(row(p), row(q), 4)
    values = prefix_law.sampled(row(p), row(q), 4, 20_000, torch.Generator().manual_seed(6))
    error = (values.mean(1) - exact).abs()
    assert (error <= 5 * values.std(1) / 20_000**0.5 + 1e-9).all(), error


def test_rejected_token_has_the_law_of_the_rule():
    """Third child: tokens drawn after the rejected prefix (x,) against their masses."""
    size, draws = 9, 200_000
    p, q = random_row(size, 3, 1.0), random_row(size, 4, 1.0)
    for k in (3, 6):  # few and many heavy tokens
        law = prefix_law._Law(p, q, k, 0)
        root = law.root()
        step = law.step(root)
        over = law.rejected(root, step, torch.arange(size)[None, None])
        first = over[0, 0].argmax()
        prefixes = prefix_law._Prefixes(
            first.view(1, 1, 1), root.prob, root.b + step, law.excess(root.b + step)
        )
        step = law.step(prefixes)
        masses = law.rejected(prefixes, step, torch.arange(size)[None, None])[0, 0]
        many = prefix_law._Prefixes(*(x.expand(-1, draws, *x.shape[2:]) for x in prefixes))
        u = torch.rand(1, draws, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        tokens = prefix_law._draw_rejected(law, many, step.expand(1, draws), u)
        share = masses / masses.sum()
        found = torch.bincount(tokens[0], minlength=size) / draws
        assert (found[share == 0] == 0).all()
        assert ((found - share).abs() <= 5 * (share * (1 - share) / draws).sqrt() + 1e-12).all()


def test_estimate_beyond_enumeration():
    size, k = 1200, 3
    p, q = random_row(size, 11, 3.0), random_row(size, 12, 3.0)
    with pytest.raises(ValueError, match="samples="):
        acceptance("rrs_wor", p, q, k)
    rng = torch.Generator().manual_seed(1)
    found = acceptance("rrs_wor", p, q, k, samples=4000, rng=rng)
    exact = prefix_law.exact(p, q, k)
    assert isinstance(found, Estimate)
    assert (found.stderr[0, :2] == 0).all()
    assert 0 < found.stderr[0, 2] < 1e-3
    assert torch.allclose(found.values[0, :2], exact[0, :2], rtol=0, atol=1e-12)
    assert (found.values - exact).abs()[0, 2] < 5 * found.stderr[0, 2]
    again = acceptance("rrs_wor", p, q, k, samples=4000, rng=torch.Generator().manual_seed(1))
    assert torch.equal(found.values, again.values)


def test_estimate_at_a_real_vocabulary():
    p, q = random_row(50_000, 21, 3.0), random_row(50_000, 22, 3.0)
    found = acceptance("rrs_wor", p, q, 6, samples=32, rng=torch.Generator().manual_seed(0))
    assert found.values.shape == found.stderr.shape == (1, 6)
    assert (found.values > 0).all()
    assert (found.values[0, :-1] > found.values[0, 1:]).all()
    assert (found.stderr < 0.02).all()
    exact = acceptance("rrs_wor", p, q, 2)
    assert torch.allclose(found.values[:, :2], exact, rtol=0, atol=1e-12)


def test_few_supported_tokens_need_no_samples():
    """What is enumerated is the support, not the vocabulary: top-k rows and one-hot rows."""
    p = random_row(20_000, 31)
    one_hot = torch.zeros_like(p)
    one_hot[0, 17] = 1.0
    found = acceptance("rrs_wor", p, one_hot, 6)[0]
    assert found[0] == pytest.approx(p[0, 17].item(), abs=1e-12)
    assert (found[1:] > 0).all()
    few = torch.zeros_like(p)
    few[0, 100:130] = random_row(30, 32)
    assert acceptance("rrs_wor", p, few, 4).shape == (1, 4)


def test_samples_give_an_estimate_even_where_exact():
    p, q = random_row(6, 1), random_row(6, 2)
    for name in ("rrs", "rrs_wor", "k_hub"):
        found = acceptance(name, p, q, 3, samples=8)
        assert isinstance(found, Estimate)
        assert torch.equal(found.values, acceptance(name, p, q, 3))
        assert (found.stderr == 0).all()


# ---------------------------------------------------------------------------------- contract


@pytest.mark.parametrize("name", ACCEPT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_is_kept(name, dtype):
    p, q = random_row(6, 1).to(dtype), random_row(6, 2).to(dtype)
    found = acceptance(name, p, q, 2)
    assert found.dtype == dtype
    wide = acceptance(name, p.double(), q.double(), 2) if dtype != torch.bfloat16 else found
    assert torch.allclose(found.double(), wide.double(), rtol=0, atol=1e-6)


def test_traversal_answers_for_its_token_level_rule():
    p, q = random_row(6, 1), random_row(6, 2)
    for name in verifiers.NAMES:
        if name.endswith("/traversal"):
            rule = name.removesuffix("/traversal")
            assert torch.equal(acceptance(name, p, q, 2), acceptance(rule, p, q, 2))


def test_every_verifier_name_is_known():
    assert {name.removesuffix("/traversal") for name in verifiers.NAMES} == set(rules())


def having(rows, i, j, value):
    rows[i, j] = value
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, q: (having(p, 1, 2, torch.nan), q), "row 1 of p holds a NaN"),
        (lambda p, q: (p, having(q, 2, 0, -0.1)), "row 2 of q holds a negative"),
        (lambda p, q: (p, having(q, 1, 3, 0.21)), "row 1 of q does not sum to 1"),
        (lambda p, q: (having(p, 0, 3, torch.inf), q), "row 0 of p does not sum to 1"),
        (lambda p, q: (p * 0, q), "row 0 of p does not sum to 1"),
        (lambda p, q: (p[:, :4], q), "must both be"),
        (lambda p, q: (p[0], q[0]), "must both be"),
        (lambda p, q: (p[:, :0], q[:, :0]), "must both be"),
        (lambda p, q: (p.long(), q), "floating point"),
    ],
)
def test_bad_rows_are_named(change, message):
    p = torch.full((3, 5), 0.2)
    for name in rules():
        bad = change(p.clone(), p.clone())
        with pytest.raises(ValueError, match=message):
            acceptance(name, *bad, 2)


@pytest.mark.parametrize(
    ("name", "k", "message"),
    [
        ("rrs", 0, "at least 1"),
        ("rrs", 2.0, "at least 1"),
        ("rrs", True, "at least 1"),
        ("spechub", 3, "takes at most 2"),
        ("nonsense", 2, "known rules: greedy"),
        ("greedy/traversal", 2, "known rules"),
    ],
)
def test_bad_arguments(name, k, message):
    p = torch.full((1, 5), 0.2)
    with pytest.raises(ValueError, match=message):
        acceptance(name, p, p, k)


def test_one_sample_has_no_standard_error():
    p = torch.full((1, 5), 0.2)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        acceptance("rrs_wor", p, p, 3, samples=1)


def test_inputs_are_not_changed():
    p, q = random_row(6, 1), random_row(6, 2)
    copies = p.clone(), q.clone()
    for name in rules():
        acceptance(name, p, q, 2)
    assert torch.equal(p, copies[0])
    assert torch.equal(q, copies[1])


def test_empty_batch():
    empty = torch.empty(0, 5)
    for name in rules():
        assert acceptance(name, empty, empty, 2).shape == (0, 2)


# -------------------------------------------------------------------------------- properties


@st.composite
def pairs(draw):
    size = draw(st.integers(2, 8))
    weights = st.lists(
        st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=size, max_size=size
    ).filter(lambda w: sum(w) > 0)
    return [row([x / sum(w) for x in w]) for w in (draw(weights), draw(weights))]


@settings(max_examples=60, deadline=None)
@given(pairs(), st.integers(1, 4), st.sampled_from(LOSSLESS))
def test_laws(pair, k, name):
    p, q = pair
    k = min(k, 2) if name == "spechub" else k
    found = acceptance(name, p, q, k)[0]
    assert (found >= 0).all()
    assert found.sum() <= 1 + 1e-12
    perm = torch.randperm(p.shape[1], generator=torch.Generator().manual_seed(k))
    if (q[0].sort().values.diff() > 0).all():  # no ties: names of tokens carry no information
        renamed = acceptance(name, p[:, perm], q[:, perm], k)[0]
        assert torch.allclose(found, renamed, rtol=0, atol=1e-12)
    if name in ("rrs", "rrs_wor") and k > 1:  # earlier children do not know how many follow
        assert torch.allclose(acceptance(name, p, q, k - 1)[0], found[:-1], rtol=0, atol=1e-12)
    if name in ("rrs", "k_seq"):
        assert found.sum() <= optimum("iid", p, q, k)[0] + 1e-9


@settings(max_examples=40, deadline=None)
@given(pairs(), st.integers(1, 4))
def test_hub_rules_agree_and_identical_rows_always_accept(pair, k):
    p, q = pair
    spechub, k_hub = (acceptance(name, p, q, 2).sum() for name in ("spechub", "k_hub"))
    assert spechub.item() == pytest.approx(k_hub.item(), abs=1e-12)
    for name in ("rrs", "rrs_wor", "k_seq"):
        same = acceptance(name, q, q, k)[0]
        assert same[0] == pytest.approx(1.0, abs=1e-12)
        assert same.sum() == pytest.approx(1.0, abs=1e-12)


def test_enumerated_prefixes_grow_with_the_support():
    q = torch.zeros(2, 50, dtype=torch.float64)
    q[0, :4] = 0.25
    q[1, 3] = 1.0
    expected = {1: 1, 2: 4, 3: 16, 4: 64, 5: 64}
    for k, number in expected.items():
        assert prefix_law.prefix_count(q, k) == number
