"""The decoder's text has exactly the target's law, over whole generations."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2
from transformers import AutoModelForCausalLM

import verifiers
from model_fi import load_model
from sequoia import AutoregressiveDecoder, SamplingParams, SpeculativeDecoder
from sequoia.pair import Pair
from tree_builder import TreeTopology
from verifiers.probs import Sampling, make_rows

PROMPT = [1, 2, 3]
RUNS = 700


def random_tree(rng: random.Random, size: int, max_children: int) -> TreeTopology:
    parents, counts = [-1], [0]
    while len(parents) < size:
        parent = rng.choice([i for i, count in enumerate(counts) if count < max_children])
        parents.append(parent)
        counts[parent] += 1
        counts.append(0)
    return TreeTopology.from_parents(parents)


def max_children_of(name: str) -> int:
    return verifiers.make(name).max_children or 4


@pytest.mark.parametrize("seed", range(6))
def test_greedy_text_is_that_of_plain_decoding_and_of_transformers(seed, tiny_pair, tiny_folders):
    rng = random.Random(seed)
    pair = tiny_pair(97)
    prompt = [rng.randrange(97) for _ in range(rng.randint(1, 70))]
    tree = random_tree(rng, rng.randint(2, 24), rng.randint(1, 4))
    params = SamplingParams(max_new_tokens=60, temperature=0)
    tokens = SpeculativeDecoder(pair, tree, "rrs_wor").generate(prompt, params).token_ids
    assert tokens == AutoregressiveDecoder(pair).generate(prompt, params).token_ids
    reference = AutoModelForCausalLM.from_pretrained(tiny_folders(97)[0], dtype=torch.float32)
    expected = reference.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=60, use_cache=True
    )
    assert tokens == expected[0, len(prompt) :].tolist()


def exact_law(pair: Pair, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of PROMPT, one fresh pass of the target each."""
    decoder = AutoregressiveDecoder(pair)
    sampling = Sampling(
        torch.tensor(params.temperature),
        torch.tensor(params.top_p) if params.top_p < 1 else None,
        params.top_k,
        params.greedy,
    )
    law = {(): 1.0}
    for _ in range(params.max_new_tokens):
        longer = {}
        for text, mass in law.items():
            ids = torch.tensor(PROMPT + list(text))
            row = make_rows(decoder.target.prefill(ids).double(), sampling)
            for token, prob in enumerate(row.probs[0].tolist()):
                if prob > 0:
                    longer[(*text, token)] = mass * prob
        law = longer
    return law


def chi_square_p(counts: dict, law: dict) -> float:
    """p-value of the counts under the law; outcomes expected fewer than 5 times are pooled."""
    assert set(counts) <= set(law), "a text of probability zero was generated"
    pools: list[list[float]] = []
    rest = [0.0, 0.0]
    for text, prob in law.items():
        cell = [float(counts.get(text, 0)), prob * RUNS]
        if cell[1] >= 5:
            pools.append(cell)
        else:
            rest = [rest[0] + cell[0], rest[1] + cell[1]]
    if rest[1] >= 5:
        pools.append(rest)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in pools)
    return float(chi2.sf(statistic, len(pools) - 1))


FILTERED = {"temperature": 0.9, "top_k": 4, "top_p": 0.9}
PLAIN = {"temperature": 0.9}


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, FILTERED) for name in verifiers.NAMES if name != "greedy"]
    + [(name, PLAIN) for name in ("rrs", "rrs_wor", "spechub")],
    ids=lambda value: value if isinstance(value, str) else "_".join(value),
)
def test_whole_generations_follow_the_target(name, how, tiny_pair):
    """Four tokens take two steps at least: what one step leaves to the next is part of the law."""
    pair = tiny_pair(5)
    params = SamplingParams(max_new_tokens=4, **how)
    law = exact_law(pair, params)
    assert abs(sum(law.values()) - 1) < 1e-6
    tree = (
        TreeTopology((-1, 0, 0, 1, 1))
        if max_children_of(name) < 3
        else TreeTopology((-1, 0, 0, 0, 1, 1))
    )
    decoder = SpeculativeDecoder(pair, tree, name, max_length=64)
    counts = count_texts(decoder, params)
    assert chi_square_p(counts, law) > 1e-4


@pytest.mark.parametrize(
    ("spec", "name"),
    [("adaptive:2x1x4", "rrs_wor/traversal"), ("adaptive:3x2x3@5", "target_match")],
)
def test_adaptive_trees_follow_the_target(spec, name, tiny_pair):
    pair = tiny_pair(5)
    params = SamplingParams(max_new_tokens=4, **PLAIN)
    decoder = SpeculativeDecoder(pair, spec, name, max_length=64)
    assert chi_square_p(count_texts(decoder, params), exact_law(pair, params)) > 1e-4


def count_texts(decoder: SpeculativeDecoder, params: SamplingParams) -> dict:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(RUNS):
        text = tuple(decoder.generate(PROMPT, replace(params, seed=seed)).token_ids)
        counts[text] = counts.get(text, 0) + 1
    return counts


def test_the_chi_square_sees_another_temperature(tiny_pair):
    pair = tiny_pair(5)
    law = exact_law(pair, SamplingParams(max_new_tokens=4, temperature=0.9))
    decoder = SpeculativeDecoder(pair, "chain:3", "rrs", max_length=64)
    hotter = SamplingParams(max_new_tokens=4, temperature=1.1)
    assert chi_square_p(count_texts(decoder, hotter), law) < 1e-4


def test_a_draft_equal_to_its_target_has_everything_accepted_for_500_steps(tiny_folders):
    target = load_model(tiny_folders(97)[0], dtype=torch.float32)
    twins = Pair(None, target, target)
    params = SamplingParams(max_new_tokens=1500, temperature=0)
    output = SpeculativeDecoder(twins, "chain:3").generate([5], params)
    assert output.accepted_per_step == [2] * 500
    assert output.token_ids == AutoregressiveDecoder(twins).generate([5], params).token_ids
    sampled = SamplingParams(max_new_tokens=1500, temperature=1.0, seed=2)
    for name in ("rrs", "rrs_wor", "spechub"):
        output = SpeculativeDecoder(twins, "chain:3", name).generate([5], sampled)
        assert output.accepted_per_step == [2] * 500


def test_prompts_of_one_token_and_trees_of_every_kind_agree(tiny_pair):
    pair = tiny_pair(97)
    params = SamplingParams(max_new_tokens=20, temperature=0)
    expected = AutoregressiveDecoder(pair).generate([3], params).token_ids
    for spec, width in itertools.product(["chain", "kary", "chains"], [2, 3]):
        tree = {"chain": f"chain:{width}", "kary": f"kary:{width}^3", "chains": f"chains:{width}x3"}
        assert SpeculativeDecoder(pair, tree[spec]).generate([3], params).token_ids == expected
