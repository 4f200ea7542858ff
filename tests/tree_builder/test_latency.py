import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tree_builder import load_tree
from tree_builder.latency import LatencyCurve, LatencyCurves, LatencyPoint, draft_widths
from tree_builder.smoothing import isotonic, smooth_times

POINTS = (
    LatencyPoint(128, 1, 10.0, 0.1),
    LatencyPoint(128, 4, 13.0, 0.4),
    LatencyPoint(128, 8, 15.0, 0.4),
    LatencyPoint(1024, 1, 20.0, 0.1),
    LatencyPoint(1024, 8, 27.0, 0.1),
)


def test_interpolation_in_tokens_and_context():
    curve = LatencyCurve(POINTS)
    assert curve.ms(1, 128) == 10
    assert curve.ms(2, 128) == pytest.approx(11)
    assert curve.ms(2, 1024) == pytest.approx(21)
    assert curve.ms(2, 128 + 448) == pytest.approx(16)
    assert curve.ms(np.array([1, 4, 6]), 0) == pytest.approx([10, 13, 14])  # nearest context
    assert curve.ms(8, 9999) == 27
    assert curve.spread(2, 128) == pytest.approx(0.2)
    assert curve.max_tokens == 8
    assert curve.contexts == (128, 1024)


def test_outside_the_measured_tokens():
    curve = LatencyCurve.of_times({2: 5.0, 4: 6.0})
    assert curve.ms(1, 0) == 5
    with pytest.raises(ValueError, match="5 tokens: latency is measured up to 4"):
        curve.ms(5, 0)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((), "at least one"),
        (((0, 1, 1.0), (0, 1, 2.0)), "measured twice"),
        (((0, 0, 1.0),), "0 tokens"),
        (((-1, 1, 1.0),), "context -1"),
        (((0, 1, 0.0),), "median 0.0"),
        (((0, 1, float("nan")),), "median nan"),
        (((0, 1, 1.0, -1.0),), "spread -1.0"),
    ],
)
def test_bad_curves(points, message):
    with pytest.raises(ValueError, match=message):
        LatencyCurve(points)


def test_draft_passes_are_the_catch_up_and_the_inner_nodes_of_deeper_levels():
    assert draft_widths(load_tree("chain:1")) == ()
    assert draft_widths(load_tree("chain:2")) == (2,)
    assert draft_widths(load_tree("chain:5")) == (2, 1, 1, 1)
    assert draft_widths(load_tree("kary:2^4")) == (2, 2, 4)


def curves():
    return LatencyCurves(
        target=LatencyCurve.of_times({1: 10.0, 9: 18.0}),
        draft=LatencyCurve.of_times({1: 1.0, 5: 5.0}),
        verification={"rrs": LatencyCurve.of_times({1: 0.5, 9: 0.5})},
        commit=LatencyCurve.of_times({1: 0.25, 9: 0.25}),
        machine={"device": "cpu", "threads": 2},
    )


def test_a_step_is_its_passes():
    assert curves().step_ms(load_tree("kary:2^3"), "rrs", 0) == pytest.approx(2 + 2 + 16 + 0.75)
    assert curves().step_ms(load_tree("chain:1"), "rrs", 0) == pytest.approx(10 + 0.75)
    assert curves().max_tokens == 5
    with pytest.raises(ValueError, match="'k_seq' was not measured, only of rrs"):
        curves().tree_ms(3, "k_seq", 0)


def test_files_round_trip(tmp_path):
    path = tmp_path / "curves.json"
    for written in (curves(), LatencyCurves(LatencyCurve(POINTS), LatencyCurve(POINTS))):
        written.save(path)
        assert LatencyCurves.load(path) == written


def test_numpy_times_are_saved(tmp_path):
    curve = LatencyCurve.of_times({np.int64(1): np.float32(1.5)})
    LatencyCurves(curve, curve).save(tmp_path / "curves.json")
    assert LatencyCurves.load(tmp_path / "curves.json").target.ms(1, 0) == 1.5


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"format": "latency-curves"},
        {"format": "latency-curves", "target": [], "draft": []},
        {"format": "latency-curves", "target": 3, "draft": []},
        {"format": "latency-curves", "target": [[0]], "draft": []},
        {"format": "latency-curves", "target": [[0, 1, "x"]], "draft": []},
    ],
)
def test_bad_files_are_named(tmp_path, data):
    (tmp_path / "bad.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"bad\.json"):
        LatencyCurves.load(tmp_path / "bad.json")


def test_isotonic_pools_violators():
    assert isotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert isotonic([3, 2, 1]) == [2, 2, 2]
    assert isotonic([]) == []


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_isotonic_is_sorted_and_keeps_the_mean(values):
    fit = isotonic(values)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(fit))
    assert sum(fit) == pytest.approx(sum(values), abs=1e-9)
    assert isotonic(sorted(values)) == sorted(values)


def test_smoothing_keeps_the_bend_of_an_exact_curve():
    tokens = [1, 2, 4, 8, 16, 32, 64, 96, 128]
    flat = [20.0] * 7 + [30.0, 40.0]
    assert smooth_times(tokens, flat) == pytest.approx(flat)
    straight = [20 + 1.5 * n for n in tokens]
    assert smooth_times(tokens, straight) == pytest.approx(straight)


def test_smoothing_halves_the_noise_of_a_straight_curve():
    tokens = np.array([*range(1, 9), 12, 16, 24, 32, 48, 64])
    truth = 20 + 1.5 * tokens
    before, after = [], []
    for seed in range(50):
        noisy = truth * np.exp(0.02 * np.random.default_rng(seed).normal(size=len(tokens)))
        before.append(np.log(noisy / truth))
        after.append(np.log(np.array(smooth_times(tokens, noisy)) / truth))
    assert np.std(after) < 0.65 * np.std(before)
