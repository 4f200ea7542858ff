import numpy as np
import pytest

from tree_builder import expected_tokens, shapes
from tree_builder.acceptance import AcceptanceTable
from tree_builder.choose import choose
from tree_builder.latency import LatencyCurve, LatencyCurves
from tree_builder.search import best_trees

TOKENS = sorted({*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128})
VECTOR = AcceptanceTable.from_rates([0.60, 0.15, 0.06, 0.03, 0.02, 0.01])
TABLE = AcceptanceTable.from_rows([[0.65], [0.55, 0.2], [0.4, 0.2, 0.15]])

# target and draft pass in ms by number of tokens
CPU = (lambda n: 20 + 1.5 * n, lambda n: 2.5 + 0.15 * n)
GPU = (lambda n: 20 + 0.01 * n + 0.3 * max(0, n - 64), lambda n: 1 + 0.002 * n)
BETWEEN = (lambda n: 30 + 0.25 * n, lambda n: 2 + 0.02 * n)
HOPELESS = (lambda n: 10 + 6 * n, lambda n: 5 + n)


def make_curves(machine, noise=0.0, seed=0, **more):
    generator = np.random.default_rng(seed)

    def curve(time):
        factors = np.exp(noise * generator.normal(size=len(TOKENS)))
        return LatencyCurve.of_times({n: time(n) * f for n, f in zip(TOKENS, factors, strict=True)})

    return LatencyCurves(curve(machine[0]), curve(machine[1]), **more)


def speed(tree, table, curves, rule="rrs"):
    return 1000 * expected_tokens(tree, table) / curves.step_ms(tree, rule, 0)


@pytest.mark.parametrize("table", [VECTOR, TABLE], ids=["vector", "table"])
@pytest.mark.parametrize("machine", [CPU, GPU, BETWEEN, HOPELESS])
def test_the_choice_is_the_fastest_of_all_candidates(machine, table):
    curves = make_curves(machine)
    choice = choose({"rrs": table}, curves, max_size=40, max_levels=6, tolerance=0)
    candidates = [shapes.chain(1)] + [shapes.chain(size) for size in range(2, 7)]
    for levels in range(1, 7):
        trees = best_trees(table, 40, levels)
        candidates += [trees.tree(size) for size in range(1, 41)]
    fastest = max(speed(tree, table, curves) for tree in candidates)
    assert choice.chosen.tokens_per_second == pytest.approx(fastest, rel=1e-9)
    assert speed(choice.chosen.tree, table, curves) == pytest.approx(fastest, rel=1e-9)


def test_the_machine_decides():
    table = {"rrs": VECTOR}
    sizes = [choose(table, make_curves(m)).chosen.tree.size for m in (HOPELESS, CPU, BETWEEN, GPU)]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert 48 <= sizes[3] <= 64  # the bend of the curve


def test_no_speculation_says_where_it_breaks_even():
    choice = choose({"rrs": VECTOR}, make_curves(HOPELESS))
    assert choice.chosen is choice.baseline
    assert choice.chosen.kind == "none"
    assert choice.speed_up == 1
    assert choice.break_even > choice.drafting.expected_tokens
    assert choice.break_even == pytest.approx(choice.drafting.step_ms / choice.baseline.step_ms)
    assert "no speculation" in choice.explain()
    assert "breaks even" in choice.explain()


def test_a_win_is_above_its_break_even():
    choice = choose({"rrs": VECTOR}, make_curves(BETWEEN))
    assert choice.drafting is choice.chosen
    assert choice.chosen.expected_tokens > choice.break_even
    assert choice.speed_up == pytest.approx(choice.chosen.expected_tokens / choice.break_even)
    assert choice.runner_up.tokens_per_second <= choice.chosen.tokens_per_second
    assert "runner-up" in choice.explain()


def test_a_chain_wins_where_a_second_child_is_worthless():
    table = AcceptanceTable.from_rates([0.85, 0.0])
    choice = choose({"rrs": table}, make_curves(CPU))
    assert choice.chosen.kind == "chain"
    assert choice.runner_up.kind == "none"


def test_the_better_rule_is_taken_and_the_other_is_runner_up():
    rules = {"rrs": VECTOR, "rrs_wor": AcceptanceTable.from_rates([0.60, 0.22, 0.08, 0.04])}
    choice = choose(rules, make_curves(GPU))
    assert choice.chosen.rule == "rrs_wor"
    assert choice.runner_up.rule == "rrs"


def test_a_slow_verification_counts():
    flat = {1: 0.1, 128: 0.1}
    slow = LatencyCurve.of_times({1: 0.1, 128: 40.0})
    rules = {"rrs": VECTOR, "k_seq": AcceptanceTable.from_rates([0.61, 0.15, 0.06, 0.03])}
    verification = {"rrs": LatencyCurve.of_times(flat), "k_seq": slow}
    curves = make_curves(GPU, verification=verification)
    assert choose(rules, curves).chosen.rule == "rrs"
    assert choose(rules, make_curves(GPU)).chosen.rule == "k_seq"
    with pytest.raises(ValueError, match="'spechub' was not measured"):
        choose({"spechub": VECTOR}, curves)


def test_the_smaller_tree_is_taken_within_the_tolerance():
    curves = make_curves(GPU)
    exact = choose({"rrs": VECTOR}, curves, tolerance=0).chosen
    loose = choose({"rrs": VECTOR}, curves, tolerance=0.05).chosen
    assert loose.tree.size < exact.tree.size
    assert loose.tokens_per_second >= 0.95 * exact.tokens_per_second


@pytest.mark.parametrize("table", [VECTOR, TABLE], ids=["vector", "table"])
@pytest.mark.parametrize("machine", [CPU, GPU, BETWEEN, HOPELESS], ids=["cpu", "gpu", "mid", "bad"])
def test_noise_never_costs_three_per_cent(machine, table):
    truth = make_curves(machine)
    best = choose({"rrs": table}, truth, tolerance=0).chosen.tokens_per_second
    for seed in range(8):
        noisy = make_curves(machine, noise=0.01, seed=seed)
        chosen = choose({"rrs": table}, noisy).chosen.tree
        assert speed(chosen, table, truth) >= 0.97 * best


def test_contexts():
    def curve(short, long):
        return LatencyCurve(((0, 1, 1.0), (0, 64, short), (4000, 1, 1.0), (4000, 64, long)))

    curves = LatencyCurves(curve(1.0, 100.0), LatencyCurve.of_times({1: 0.05, 64: 0.05}))
    short = choose({"rrs": VECTOR}, curves, context=0)
    long = choose({"rrs": VECTOR}, curves, context=4000)
    assert short.chosen.tree.size > long.chosen.tree.size
    assert choose({"rrs": VECTOR}, curves).context == 4000  # the middle one, the upper of two


def test_limits():
    curves = make_curves(GPU)
    choice = choose({"rrs": VECTOR}, curves, max_size=1)
    assert (choice.chosen.kind, choice.runner_up, choice.break_even) == ("none", None, None)
    assert choice.explain().startswith("no speculation")
    choice = choose({"rrs": VECTOR}, curves, max_levels=2)
    assert choice.chosen.tree.num_levels == 2
    assert choose({"rrs": VECTOR}, curves, max_size=9999).chosen.tree.size <= 128
    for bad in ({"max_size": 0}, {"max_levels": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            choose({"rrs": VECTOR}, curves, **bad)
    with pytest.raises(ValueError, match="no acceptance"):
        choose({}, curves)


def test_by_depth():
    table = AcceptanceTable.from_rates([[0.9, 0.05], [0.1, 0.05]])
    choice = choose({"rrs": table}, make_curves(BETWEEN))
    assert choice.chosen.tree.num_levels <= 3


def test_no_speculation_is_not_its_own_runner_up():
    choice = choose({"rrs": VECTOR, "k_seq": TABLE}, make_curves(HOPELESS), max_size=16)
    assert choice.chosen.kind == "none"
    assert choice.runner_up is not None
    assert choice.runner_up.kind != "none"
