"""Latency curves and measured speed: structure, not numbers, since the machine is shared."""

from __future__ import annotations

import pytest
import torch

from sequoia import SamplingParams, SpeculativeDecoder
from sequoia.profiling import Clock, Journal, LatencySettings, Text, measure_latency, measure_speed
from sequoia.profiling.clock import Timing
from sequoia.profiling.latency import refined
from sequoia.profiling.speed import summary
from tree_builder import LatencyCurves

PARAMS = SamplingParams(max_new_tokens=12, seed=0)
FAST = Clock(seconds=0.0, least=1, most=1)


@pytest.fixture
def pair(tiny_pair):
    return tiny_pair(97)


def test_curves_cover_what_was_asked(pair, tmp_path):
    settings = LatencySettings(12, (8, 70), ("rrs_wor", "spechub"), FAST)
    curves = measure_latency(pair, [1, 2, 3], PARAMS, settings, Journal(None, {}))
    assert curves.target.contexts == curves.draft.contexts == (8, 70)
    assert curves.max_tokens == 12
    assert set(curves.verification) == {"rrs_wor", "spechub"}
    assert {1, 2, 4, 8, 12} <= {point.tokens for point in curves.target.by_context[8]}
    path = tmp_path / "latency.json"
    curves.save(path)
    loaded = LatencyCurves.load(path)
    assert loaded.target == curves.target
    assert loaded.machine["threads"] == torch.get_num_threads()


def test_at_temperature_zero_the_greedy_rule_is_timed(pair):
    settings = LatencySettings(2, (8,), ("rrs_wor",), FAST)
    params = SamplingParams(temperature=0)
    curves = measure_latency(pair, [1], params, settings, Journal(None, {}))
    assert set(curves.verification) == {"greedy"}


def test_points_are_not_measured_again(pair, tmp_path):
    settings = LatencySettings(4, (8,), ("rrs",), FAST)
    path = tmp_path / "state.jsonl"
    first = measure_latency(pair, [1], PARAMS, settings, Journal(path, {}))
    size = path.stat().st_size
    told: list[str] = []
    again = measure_latency(pair, [1], PARAMS, settings, Journal(path, {}), told.append)
    assert again.target == first.target
    assert path.stat().st_size == size
    assert len(told) >= 3


def test_points_lie_closer_where_the_curve_bends():
    def step_at(bend):
        return lambda n: dict.fromkeys(("target", "draft"), Timing(1.0 if n <= bend else 2.0, 0.0))

    bent = list(refined(step_at(100), 1024))
    near = [n for n in bent if 64 < n < 128]
    assert len(near) >= 2
    assert not [n for n in bent if 512 < n < 1024 and n != 768]
    assert list(refined(step_at(2000), 20)) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


def test_the_clock_waits_for_enough_and_leaves_before_out():
    calls = []
    clock = Clock(seconds=0.0, least=4, most=9)
    timing = clock(
        lambda: calls.append("call"), torch.device("cpu"), before=lambda: calls.append("b")
    )
    assert calls == ["b", "call"] * 5  # a warm-up and four timed
    assert timing.median_ms >= 0
    assert timing.spread_ms >= 0


def test_what_does_not_fit_is_refused(pair):
    def ask(*arguments, text=(1,)):
        settings = LatencySettings(*arguments)
        return measure_latency(pair, text, PARAMS, settings, Journal(None, {}))

    with pytest.raises(ValueError, match="2000 and a tree of 100 nodes"):
        ask(100, (2000,))
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        ask(0)
    with pytest.raises(ValueError, match="contexts"):
        ask(4, ())
    with pytest.raises(ValueError, match="unknown verifier 'magic'"):
        ask(4, (8,), ("magic",))
    with pytest.raises(ValueError, match="no text"):
        ask(4, (8,), text=())


def test_speed_compares_as_many_tokens(pair):
    decoder = SpeculativeDecoder(pair, "chain:3", max_length=64)
    journal = Journal(None, {})
    prompts = [Text("a", [1, 2], 2), Text("b", [3], 1)]
    measured = measure_speed(decoder, prompts, PARAMS, journal)
    assert measured["tokens"] == 24
    assert measured["tokens_per_step"] == pytest.approx(
        24 / (journal["speed a"]["steps"] + journal["speed b"]["steps"])
    )
    for prompt in prompts:
        record = journal[f"speed {prompt.key}"]
        assert record["plain_tokens"] == record["tokens"] - 1  # the first step is not timed
        assert record["tree_tokens"] < record["tokens"]


def test_speed_up_by_hand():
    record = {
        "steps": 5, "tokens": 10, "tree_seconds": 0.8, "tree_tokens": 8,
        "plain_seconds": 1.8, "plain_tokens": 9,
    }  # fmt: skip
    found = summary([record, record])
    assert found["speed_up"] == pytest.approx(2.0)
    assert found["speed_up_error"] == pytest.approx(0.0)
    assert found["tokens_per_step"] == 2.0
    assert found["step_ms"] == pytest.approx(200.0)
    assert found["plain_step_ms"] == pytest.approx(200.0)
