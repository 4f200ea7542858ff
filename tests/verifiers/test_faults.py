"""Degenerate rows: no mass left, dead children, leaves, rows that are no distributions."""

import pytest
import torch
from toys import grow, uniforms_for

import verifiers
from tree_builder import TreeTopology
from verifiers import Rows, Verdict
from verifiers.walkers import Step

NONE = -torch.inf
LOSSLESS = [name for name in verifiers.NAMES if name != "greedy"]
BINARY = TreeTopology((-1, 0, 0, 1, 1, 2, 2))


def rows(logits):
    logits = torch.tensor(logits, dtype=torch.float64)
    return Rows(logits, logits.softmax(-1))


def both_forms(verifier, tree, target, draft, flat):
    tensors, drafted, uniforms = grow(verifier, tree, draft, flat)
    step = Step(tensors, drafted, target, draft, uniforms)
    lazy, batched = verifier.lazy(step), verifier.batched(step)
    for field in Verdict._fields:
        assert torch.equal(getattr(lazy, field), getattr(batched, field)), field
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            lazy, verifier.verify(tensors, drafted, target, draft, uniforms), strict=True
        )
    )
    return drafted, lazy


@pytest.mark.parametrize("name", LOSSLESS)
def test_equal_rows_accept_a_whole_chain(name):
    chain = TreeTopology((-1, 0, 1, 2, 3))
    target = rows(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).tolist())
    if name == "target_match":
        pytest.skip("accepts the target's own token only")
    for seed in range(20):
        _, verdict = both_forms(
            verifiers.make(name),
            chain,
            target,
            target.select([0, 1, 2, 3]),
            uniforms_for(chain, seed),
        )
        assert verdict.path.tolist() == [0, 1, 2, 3, 4]
        assert verdict.num_accepted == 4


@pytest.mark.parametrize("name", LOSSLESS)
def test_bonus_never_has_probability_zero(name):
    """Also where the residual has no mass: then it is drawn from p, which has zeros too."""
    target = rows([[0.0, NONE, 1.0, NONE]] * 7)
    for draft_row in (
        [0.0, NONE, 1.0, NONE],
        [0.0, 5.0, 0.0, 5.0],
        [9.0, 0, 0, 0],
        [NONE, 0, NONE, 0],
    ):
        draft = rows([draft_row] * 3)
        for seed in range(40):
            flat = uniforms_for(BINARY, seed)
            if seed % 2:  # rejections that have probability 0: a coin just below 1, a bonus at 0
                flat[6:] = 1 - 2**-53
                flat[-1] = 0.0
            drafted, verdict = both_forms(verifiers.make(name), BINARY, target, draft, flat)
            assert verdict.fault == 0
            assert verdict.bonus in (0, 2)
            tokens = dict(zip(range(1, 7), drafted.tokens.flatten().tolist(), strict=True))
            assert all(tokens[node] in (0, 2) for node in set(verdict.path.tolist()) - {0})


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_massless_residual_falls_back_to_the_nodes_own_row(name):
    """p == q in floating point, and a rejection forced through the plan itself."""
    rule = verifiers.make(name).rule
    p = rows([[0.0, 1.0, NONE, 2.0]])
    drafted = rule.draw(p, (2,), torch.tensor([[0.4, 0.9]], dtype=torch.float64))
    plan = rule.plan(p, p, drafted, torch.ones(1, dtype=torch.float64))
    assert plan.stop.item() == 1
    assert plan.residual.sum() > 0
    assert plan.residual[0, 2] == 0
    assert torch.isfinite(plan.budgets).all()


@pytest.mark.parametrize("name", [name for name in verifiers.NAMES if "/" in name])
def test_no_budget_finds_nothing(name):
    rule = verifiers.make(name).rule
    p, q = rows([[0.0, 1.0, 0.5, 2.0]]), rows([[1.0, 1.0, 0.0, NONE]])
    drafted = rule.draw(q, (2,), torch.tensor([[0.4, 0.9]], dtype=torch.float64))
    plan = rule.plan(p, q, drafted, torch.zeros(1, dtype=torch.float64))
    assert plan.budgets.tolist() == [[0, 0]]
    assert plan.stop.item() == 0


@pytest.mark.parametrize("name", ["rrs_wor", "k_hub", "target_match", "greedy"])
def test_more_children_than_tokens(name):
    tree = TreeTopology((-1,) + (0,) * 5)
    target, draft = rows([[0.0, 1.0, 2.0]] * 6), rows([[0.0, 3.0, NONE]])
    drafted, verdict = both_forms(verifiers.make(name), tree, target, draft, uniforms_for(tree, 3))
    assert drafted.tokens.shape == (1, 5)
    assert drafted.live.sum() == {"rrs_wor": 3}.get(name, 2)
    assert ((drafted.tokens >= 0) & (drafted.tokens < 3)).all()
    live = drafted.tokens[drafted.live].tolist()
    assert len(set(live)) == len(live)
    assert verdict.fault == 0


def test_spechub_never_invents_a_second_token():
    drafted = verifiers.make("spechub").propose(
        rows([[NONE, 0.0, NONE], [0.0, 1.0, NONE]]), (2, 2), torch.full((2, 2), 0.5).double()
    )
    assert drafted.live.tolist() == [[True, False], [True, True]]
    assert drafted.tokens[0, 0] == 1


def test_counts_differ_within_a_level():
    q = rows([[0.0, 1.0, 2.0, 3.0]] * 4)
    uniforms = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name in verifiers.NAMES:
        verifier = verifiers.make(name)
        counts = (1, 2, 2, 1) if verifier.max_children == 2 else (1, 3, 2, 2)
        drafted = verifier.propose(q, counts, uniforms)
        assert drafted.live.sum(-1).tolist() == list(counts), name
        for row, count in enumerate(counts):  # a row draws as it would on its own
            alone = verifier.propose(q.select([row]), (count,), uniforms[row : row + 1])
            assert torch.equal(alone.tokens[0], drafted.tokens[row, :count]), name
            assert alone.hub[0] == drafted.hub[row], name


@pytest.mark.parametrize("name", verifiers.NAMES)
def test_a_tree_of_one_node_draws_from_the_target(name):
    verifier, tree = verifiers.make(name), TreeTopology((-1,))
    tensors = tree.tensors("cpu")
    uniforms = verifiers.Uniforms.view(torch.tensor([0.1, 0.999]).double(), 0, 0, 1)
    target = rows([[NONE, 0.0, 30.0]])
    step = Step(tensors, None, target, None, uniforms)
    for verdict in (verifier.lazy(step), verifier.batched(step)):
        assert verdict.path.tolist() == [0]
        assert [int(value) for value in verdict[1:]] == [0, 2, 0]


def broken(probs, kind):
    """The row's logits and probabilities, made into no distribution."""
    probs = probs.clone()
    if kind == "nan":
        probs[0] = torch.nan
    elif kind == "negative":
        probs[0] -= 2.0
        probs[1] += 2.0
    elif kind == "massless":
        probs[:] = 0
    return probs


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("kind", ["nan", "negative", "massless"])
@pytest.mark.parametrize("side", ["target", "draft"])
def test_fault_names_the_node(name, kind, side):
    """Only nodes on the walk count, in both forms; the verdict stays in range."""
    if name == "target_match" and side == "draft":
        pytest.skip("does not read the draft row when it verifies")
    verifier = verifiers.make(name)
    seen = set()
    generator = torch.Generator().manual_seed(5)
    good = rows((2 * torch.randn(7, 5, generator=generator)).tolist())
    for node in range(7 if side == "target" else 3):
        for seed in range(12):
            tensors, drafted, uniforms = grow(
                verifier, BINARY, good.select([0, 1, 2]), uniforms_for(BINARY, seed)
            )
            tables = {"target": good, "draft": good.select([0, 1, 2])}
            probs, logits = tables[side].probs.clone(), tables[side].logits.clone()
            probs[node] = broken(probs[node], kind)
            tables[side] = Rows(logits, probs)
            step = Step(tensors, drafted, tables["target"], tables["draft"], uniforms)
            lazy, batched = verifier.lazy(step), verifier.batched(step)
            assert lazy.fault == batched.fault
            assert torch.equal(lazy.path, batched.path)
            assert 0 <= batched.bonus < 5
            assert batched.fault in (0, node + 1)
            if batched.fault:
                assert batched.path[-1] == node
                seen.add(node)
            else:
                assert torch.equal(lazy.bonus, batched.bonus)
    assert 0 in seen
    assert len(seen) > 1


def test_greedy_faults_on_nan_logits():
    logits = torch.tensor([[0.0, 1.0, torch.nan]] + [[0.0, 2.0, 1.0]] * 2)
    probs = torch.nn.functional.one_hot(torch.tensor([1, 1, 1]), 3).double()
    tree = TreeTopology((-1, 0, 0))
    draft = rows([[0.0, 1.0, 2.0]])
    _, verdict = both_forms(
        verifiers.make("greedy"), tree, Rows(logits.double(), probs), draft, uniforms_for(tree, 0)
    )
    assert verdict.fault == 1


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_greedy_faults_on_a_broken_leaf(bad):
    """A leaf has no plan: its row alone must tell, and a one-hot of NaN's argmax did not."""
    sampling = verifiers.Sampling(torch.tensor(1.0), greedy=True)
    logits = torch.tensor([[0.0, 0.0, 5.0], [bad, 0.0, 0.0]])
    tree = TreeTopology((-1, 0))
    draft = verifiers.make_rows(logits[:1], sampling)
    _, verdict = both_forms(
        verifiers.make("greedy"),
        tree,
        verifiers.make_rows(logits, sampling),
        draft,
        uniforms_for(tree, 0),
    )
    assert verdict.fault == 2


def test_names_and_check_tree():
    assert verifiers.__sequoia__
    assert [verifiers.make(name).name for name in verifiers.NAMES] == list(verifiers.NAMES)
    for name in ("magic", "greedy/traversal", "rrs/", ""):
        with pytest.raises(ValueError, match="rrs_wor, k_seq"):
            verifiers.make(name)
    tree = TreeTopology((-1, 0, 1, 1, 1))
    for name in verifiers.NAMES:
        if name.startswith("spechub"):
            with pytest.raises(ValueError, match=r"node 1 has 3 children.*at most 2.*k_hub"):
                verifiers.check_tree(verifiers.make(name), tree)
        else:
            verifiers.check_tree(verifiers.make(name), tree)


def test_uniforms_are_views_of_one_tensor():
    flat = torch.arange(3 * 2 + 7 + 1.0).double()
    uniforms = verifiers.Uniforms.view(flat, 3, 2, 7)
    assert uniforms.draw.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert uniforms.accept.tolist() == list(range(6, 13))
    flat[-1] = -5
    assert uniforms.bonus == -5
    with pytest.raises(ValueError, match="14"):
        verifiers.Uniforms.view(flat[1:], 3, 2, 7)
