"""The decoder's own step on the meta device: nothing in it reads the host or copies from it.

There is no GPU where this is tested. On meta the step takes every branch it takes on CUDA, and
whatever could not be captured in a graph (a read, a copy, a tensor elsewhere) is refused here.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import verifiers
from experiments.device_ops import HostAccess, traced
from experiments.random_pair import llama_config, random_pair
from sequoia import SamplingParams, SpeculativeDecoder

TREES = ["kary:2^3", "chain:4", "adaptive:2x2x4"]
LAWS = {
    "plain": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.9},
    "both": {"top_k": 5, "top_p": 0.9},
    "greedy": {"temperature": 0},
}


@pytest.fixture(scope="module")
def pair():
    config = llama_config(
        vocab_size=300,  # more than one block of inverse_cdf
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    return random_pair(config, config, torch.bfloat16, "meta")


def run(step):
    step.prepare(128)
    with traced("meta", strict=True) as ops:
        step.run(128)
    return ops


def make_step(pair, tree, verifier, law, observed=False):
    decoder = SpeculativeDecoder(pair, tree, verifier, max_length=200)
    return decoder.step(SamplingParams(**law), 100, observed)[1]


CASES = [
    *itertools.product(
        set(verifiers.NAMES) - {"greedy"}, ["kary:2^3", "adaptive:2x2x4"], ["plain"]
    ),
    *itertools.product(verifiers.NAMES[1:], ["chain:4"], ["both"]),
    *itertools.product(["rrs_wor"], ["adaptive:2x2x4"], ["top_k", "top_p", "both"]),
    *itertools.product(["greedy", "rrs/traversal"], TREES, ["greedy"]),
]


@pytest.mark.parametrize(("name", "tree", "law"), sorted(CASES))
def test_every_step_can_be_captured(pair, name, tree, law):
    step = make_step(pair, tree, name, LAWS[law], observed=True)
    assert step.growth.num_levels >= 3
    ops = run(step)
    assert ops.num_launches > 50
    assert not ops.reads
    assert not ops.copies
    assert step.made.verdict.path.shape == (step.growth.num_levels,)
    assert step.made.verdict.bonus.device.type == "meta"


def test_wide_and_ragged_trees_and_pruned_ones_can_be_captured(pair):
    run(make_step(pair, "chains:3x2", "rrs_wor/traversal", {}))
    run(make_step(pair, "adaptive:3x2x4@9", "target_match", {}))


def test_the_autoregressive_step_can_be_captured(pair):
    for law in LAWS.values():
        run(make_step(pair, "chain:1", "rrs", law))


class Spoilt:
    """A verifier with one fault in its `verify`."""

    def __init__(self, fault):
        self.inner, self.fault = verifiers.make("rrs"), fault
        self.name, self.max_children = "spoilt", None

    def propose(self, *args):
        return self.inner.propose(*args)

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        self.fault(drafted.tokens)
        return self.inner.verify(tree, drafted, target_rows, draft_rows, uniforms)


FAULTS = {
    "item": lambda tokens: tokens[0, 0].item(),
    "bool": lambda tokens: bool(tokens[0, 0] > 0),
    "tolist": lambda tokens: tokens.tolist(),
    "nonzero": lambda tokens: tokens.nonzero(),
    "boolean index": lambda tokens: tokens[tokens > 0],
    "tensor index": lambda tokens: tokens[tokens.new_zeros(())],
    "torch.tensor on the host": lambda tokens: torch.tensor([0, 1]),
    "torch.tensor on the device": lambda tokens: torch.tensor([0, 1], device=tokens.device),
    "list index": lambda tokens: tokens[[0, 1]],
    "arange on the host": lambda tokens: torch.arange(2).to(tokens.device),
    "to the host": lambda tokens: tokens.to("cpu"),
    "host scalar": lambda tokens: tokens + torch.ones((), dtype=torch.long),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_with_one_fault_is_refused(pair, fault):
    step = make_step(pair, "kary:2^3", Spoilt(FAULTS[fault]), {})
    with pytest.raises(HostAccess):
        run(step)


def test_without_its_fault_that_step_is_accepted(pair):
    run(make_step(pair, "kary:2^3", Spoilt(lambda tokens: None), {}))
