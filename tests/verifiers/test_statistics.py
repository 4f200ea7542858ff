"""Large vocabularies, fp32, real numbers instead of labels: counts against the target's law."""

import pytest
import torch
from scipy.stats import chi2

import verifiers
from tree_builder import TreeTopology
from verifiers import DeferredRows, Sampling, Uniforms, make_rows

V = 32_000
STEPS = 400
NAMES = [name for name in verifiers.NAMES if name != "greedy"]


def language_like(seed):
    """Logits [3, V] that fall like a language model's: a few heavy tokens and a long tail."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, V + 1).float()
    base = -1.1 * ranks.log()
    rows = [base[torch.randperm(V, generator=generator)] for _ in range(3)]
    return torch.stack(rows)


def first_tokens(verifier, target_logits, draft_logits, sampling, seed):
    """[STEPS] first token emitted by each of many steps from the same text."""
    k = min(verifier.max_children or 3, 3)
    tree = TreeTopology((-1,) + (0,) * k)
    tensors = tree.tensors("cpu")
    draft = make_rows(draft_logits, sampling)
    target = DeferredRows(target_logits.expand(tree.size, V), sampling)
    generator = torch.Generator().manual_seed(seed)
    flat = torch.empty(Uniforms.num(1, k, tree.size), dtype=torch.float64)
    uniforms = Uniforms.view(flat, 1, k, tree.size)
    tokens = []
    for _ in range(STEPS):
        flat.uniform_(generator=generator)
        drafted = verifier.propose(draft, (k,), uniforms.draw)
        verdict = verifier.verify(tensors, drafted, target, draft, uniforms)
        assert verdict.fault == 0
        node = int(verdict.path[-1])
        tokens.append(int(drafted.tokens[0, node - 1]) if node else int(verdict.bonus))
    return torch.tensor(tokens)


def assert_follows(tokens, p):
    """Chi-square over the heaviest tokens and slices of the tail; never a token of p = 0."""
    assert (p[tokens] > 0).all()
    order = p.argsort(descending=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(V)
    edges = torch.tensor([1, 2, 3, 5, 10, 30, 100, 1000, 10_000, V])
    bins = torch.bucketize(rank, edges, right=True)
    mass = torch.zeros(len(edges)).double().index_add(0, bins, p.double())
    counts = torch.bincount(bins[tokens], minlength=len(edges)).double()
    expected = mass * len(tokens)
    used = expected > 5
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum().item()
    assert statistic < chi2.ppf(1 - 1e-4, int(used.sum()) - 1)


@pytest.mark.parametrize("name", NAMES)
def test_tail_mass(name):
    """Unfiltered rows: a third of the mass lies beyond the first 1000 tokens."""
    logits = language_like(1)
    draft = 0.8 * logits[:1] + 0.2 * logits[1:2]
    sampling = Sampling(torch.tensor(1.0))
    tokens = first_tokens(verifiers.make(name), logits[:1], draft, sampling, seed=11)
    assert_follows(tokens, make_rows(logits[:1], sampling).probs[0])


@pytest.mark.parametrize("name", NAMES)
def test_filtered_rows(name):
    """Top-k and top-p cut target and draft at different tokens."""
    logits = language_like(2)
    draft = 0.5 * logits[:1] + 0.5 * logits[1:2]
    sampling = Sampling(torch.tensor(0.7), torch.tensor(0.95), 500)
    p = make_rows(logits[:1], sampling).probs[0]
    assert 50 < (p > 0).sum() < 500
    tokens = first_tokens(verifiers.make(name), logits[:1], draft, sampling, seed=12)
    assert_follows(tokens, p)
