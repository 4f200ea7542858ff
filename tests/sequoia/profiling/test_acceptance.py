"""Measured acceptance: static against the analytic law, live against enumeration and static."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from model_fi import EagerRunner, causal_mask
from sequoia import SamplingParams, SpeculativeDecoder
from sequoia.profiling import (
    Journal,
    LiveCounter,
    StaticSettings,
    Text,
    own_texts,
    profile_live,
    profile_static,
)
from sequoia.profiling.ratios import ratio, table_of, vector_table_of
from sequoia.profiling.static import depth_weights
from tree_builder import load_tree
from verifiers.acceptance import acceptance

PARAMS = SamplingParams(max_new_tokens=24, temperature=1.0, seed=5)


def memory():
    return Journal(None, {})


@pytest.fixture
def pair(tiny_pair):
    return tiny_pair(7)


@pytest.fixture
def texts(pair):
    prompts = [Text(f"p{i}", [i, 2, 3], 3) for i in range(4)]
    return own_texts(pair, prompts, PARAMS, memory())


def rows(model, ids, temperature=1.0):
    runner = EagerRunner(model, 64)
    positions = torch.arange(len(ids) - 1)
    logits = runner.forward(
        torch.tensor(ids[:-1]), positions, positions, causal_mask(positions, 64)
    )
    return (logits.double() / temperature).softmax(-1)


@pytest.mark.parametrize("rule", ["rrs", "rrs_wor", "target_match", "k_seq", "k_hub", "spechub"])
def test_static_is_the_mean_of_the_exact_acceptance(pair, texts, rule):
    settings = StaticSettings(rules=(rule,), max_children=3, positions=1000)
    table = profile_static(pair, texts, PARAMS, settings, memory())[rule]
    for children in range(1, table.max_children + 1):
        values = [
            acceptance(rule, rows(pair.target, t.ids)[2:], rows(pair.draft, t.ids)[2:], children)
            for t in texts
        ]
        expected = torch.cat(values).mean(0)
        np.testing.assert_allclose(table.at(0, children), expected, atol=2e-5)


def test_static_evaluates_as_many_positions_as_asked_in_pieces(pair, monkeypatch):
    monkeypatch.setattr("sequoia.profiling.static.CHUNK", 5)
    text = Text("long", [1, 2, 3, 4, 5, 6, 0] * 6, 1)
    settings = StaticSettings(rules=("rrs",), max_children=2, positions=9)
    found = memory()
    profile_static(pair, [text], PARAMS, settings, found)
    assert found["static long"]["visited"] == [9.0]
    p, q = rows(pair.target, text.ids), rows(pair.draft, text.ids)
    chosen = np.linspace(0, 40, 9).round().astype(int)
    expected = acceptance("rrs", p[chosen], q[chosen], 2).sum(0)
    np.testing.assert_allclose(found["static long"]["accepted"]["rrs"][0][1], expected, atol=2e-5)


def test_at_temperature_zero_greedy_alone_is_measured(pair, texts):
    params = SamplingParams(temperature=0)
    tables = profile_static(pair, texts, params, StaticSettings(positions=1000), memory())
    assert list(tables) == ["greedy"]
    right = [
        (rows(pair.target, t.ids)[2:].argmax(-1) == rows(pair.draft, t.ids)[2:].argmax(-1))
        for t in texts
    ]
    rate = torch.cat(right).double().mean()
    assert tables["greedy"].at(0, 1)[0] == pytest.approx(float(rate))
    with pytest.raises(ValueError, match="greedy rule decodes at temperature 0 only"):
        profile_static(pair, texts, PARAMS, StaticSettings(rules=("greedy",)), memory())


def test_depth_weights_follow_a_text():
    weights = depth_weights(np.array([1.0, 0.5, 0.0, 1.0]), 3)
    np.testing.assert_allclose(weights, [[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [1, 0, 0]])
    assert depth_weights(np.full(9, 0.7), 1).tolist() == [[1.0]] * 9


def test_depth_weights_match_positions_of_a_live_chain(pair):
    """Static by depth predicts what a chain of single drafts meets at each depth."""
    prompts = [Text(f"p{i}", [i % 7, 2], 2) for i in range(6)]
    params = SamplingParams(max_new_tokens=30, seed=3)
    texts = own_texts(pair, prompts, params, memory())
    settings = StaticSettings(("rrs",), max_children=1, num_depths=2, positions=1000)
    static = profile_static(pair, texts, params, settings, memory())["rrs"]
    decoder = SpeculativeDecoder(pair, "chain:12", "rrs", max_length=128)
    live = profile_live(decoder, prompts, params, 2, memory())
    for depth in range(2):
        error = live.standard_errors[depth, 0, 0] + static.standard_errors[depth, 0, 0]
        assert abs(live.at(depth, 1)[0] - static.at(depth, 1)[0]) < 4 * error


@pytest.mark.parametrize("rule", ["rrs_wor", "k_seq"])
def test_live_agrees_with_static(pair, rule):
    prompts = [Text(f"p{i}", [i % 7, i // 7, 3], 3) for i in range(8)]
    params = SamplingParams(max_new_tokens=40, seed=1)
    decoder = SpeculativeDecoder(pair, "kary:2^2", rule, max_length=128)
    live = profile_live(decoder, prompts, params, 1, memory())
    texts = own_texts(pair, prompts, params, memory())
    settings = StaticSettings((rule,), max_children=2, num_depths=1, positions=1000)
    static = profile_static(pair, texts, params, settings, memory())[rule]
    error = live.standard_errors[0, 1] + static.standard_errors[0, 1]
    assert (np.abs(live.at(0, 2) - static.at(0, 2)) < 4 * error + 0.02).all()


@pytest.mark.parametrize("rule", ["rrs_wor", "rrs_wor/traversal"])
def test_live_counts_are_the_steps(pair, rule):
    """Every token is an accepted child or a bonus: the counts add up to the generation."""
    counter = LiveCounter(max_children=2, num_depths=3)
    decoder = SpeculativeDecoder(pair, "kary:2^3", rule, max_length=256)
    output = decoder.generate(
        [1, 2, 3], SamplingParams(max_new_tokens=99, seed=0), observer=counter
    )
    assert counter.visited.sum(1)[0] in (output.num_steps, output.num_steps - 1)
    assert abs(counter.accepted.sum() - sum(output.accepted_per_step)) <= 2
    assert (counter.accepted.sum(-1) <= counter.visited).all()
    assert counter.visited[1].sum() <= counter.accepted[0].sum()
    assert counter.visited[:, 0].sum() == 0  # no node of this tree has one child


def test_live_counts_wide_nodes_only_as_far_as_asked(pair):
    decoder = SpeculativeDecoder(pair, "kary:3^2", "rrs", max_length=64)
    with pytest.raises(ValueError, match="3 children, counted are up to 2"):
        decoder.generate([1], SamplingParams(max_new_tokens=9), observer=LiveCounter(2, 1))
    single = SpeculativeDecoder(pair, load_tree("chain:1"), "rrs", max_length=64)
    with pytest.raises(ValueError, match="single node"):
        profile_live(single, [Text("a", [1], 1)], PARAMS, 1, memory())


def test_ratio_and_its_error_by_hand():
    rate, error = ratio(np.array([[1.0], [2.0]]), np.array([[2.0], [2.0]]))
    assert rate == pytest.approx(0.75)
    assert error == pytest.approx(np.sqrt(2 * (0.5**2 + 0.5**2)) / 4)
    assert ratio(np.array([[1.0]]), np.array([[2.0]]))[1] is None
    never, _ = ratio(np.zeros((2, 1)), np.zeros((2, 1)))
    assert never == 0


def test_a_vector_pools_nodes_of_all_widths():
    accepted = np.zeros((1, 2, 2))
    accepted[0, 0, 0], accepted[0, 1] = 3, [4, 2]
    visited = np.array([[5, 10]])
    table = vector_table_of([accepted], [visited], {})
    np.testing.assert_allclose(table.vectors, [[7 / 15, 2 / 10]])
    assert table_of([accepted], [visited], {}).at(0, 1)[0] == pytest.approx(3 / 5)


def test_an_interrupted_profile_continues_with_the_same_result(pair, texts, tmp_path):
    settings = StaticSettings(("rrs",), max_children=2)
    whole = profile_static(pair, texts, PARAMS, settings, memory())["rrs"]
    path = tmp_path / "state.jsonl"
    with pytest.raises(KeyboardInterrupt):
        profile_static(
            pair, texts, PARAMS, settings, Journal(path, {"a": 1}), progress=interrupted_after(2)
        )
    path.write_text(path.read_text() + '{"key": "static p2", "va')  # cut off in the middle
    journal = Journal(path, {"a": 1})
    assert len(journal) == 2
    again = profile_static(pair, texts, PARAMS, settings, journal)["rrs"]
    np.testing.assert_array_equal(again.rates, whole.rates)
    assert len(Journal(path, {"a": 1})) == 4


def interrupted_after(number):
    def progress(items):
        yield from itertools.islice(items, number)
        raise KeyboardInterrupt

    return progress


def test_a_journal_of_other_settings_or_another_file_is_refused(tmp_path):
    path = tmp_path / "state.jsonl"
    Journal(path, {"temperature": 1.0, "rules": ("a",)}).add("x", 1)
    assert Journal(path, {"temperature": 1.0, "rules": ("a",)})["x"] == 1
    with pytest.raises(ValueError, match=r"temperature = 1.0, not 0.5"):
        Journal(path, {"temperature": 0.5, "rules": ("a",)})
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="not a journal"):
        Journal(path, {})


def test_bad_requests_are_named(pair, texts):
    with pytest.raises(ValueError, match="no analytic acceptance for 'magic'"):
        StaticSettings(rules=("magic",))
    with pytest.raises(ValueError, match="max_children must be at least 1, got 0"):
        StaticSettings(max_children=0)
    with pytest.raises(ValueError, match="no texts"):
        profile_static(pair, [], PARAMS, StaticSettings(), memory())
