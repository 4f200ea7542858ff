"""Filters as transformers defines them, and the small exact pieces."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import device_form
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from verifiers import DeferredRows, Rows, Sampling, make_rows, probs
from verifiers.probs import (
    _nucleus_selected,
    _nucleus_sorted,
    either,
    exclude,
    faulty,
    largest,
    mask_tokens,
    ratio,
    without,
)


def logits_of(num_rows, size, seed=0, scale=3.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(num_rows, size, generator=generator)).to(dtype)


def sampling(temperature=1.0, top_k=0, top_p=None):
    return Sampling(
        torch.tensor(temperature), None if top_p is None else torch.tensor(top_p), top_k
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 1000])
@pytest.mark.parametrize("top_p", [None, 1.0, 0.9, 0.5, 0.01])
def test_filters_are_those_of_transformers(temperature, top_k, top_p):
    logits = logits_of(6, 997)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k > 0:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    rows = make_rows(logits, sampling(temperature, top_k, top_p))
    kept = rows.logits > -math.inf
    different = (kept != (expected > -math.inf)).nonzero()
    # At top_p = 1 both filters sit on the rounding of the last cumulative sums.
    assert top_p == 1.0 or different.numel() == 0
    if top_p != 1.0:
        torch.testing.assert_close(rows.probs, expected.softmax(-1))
    torch.testing.assert_close(rows.probs.sum(-1), torch.ones(6))


def test_top_p_of_one_as_a_tensor_keeps_what_is_above_rounding():
    rows = make_rows(logits_of(3, 50), sampling(top_p=1.0))
    torch.testing.assert_close(rows.probs, make_rows(logits_of(3, 50), sampling()).probs)


def test_ties_at_a_threshold_are_all_kept():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    assert (make_rows(logits, sampling(top_k=2)).probs > 0)[0].tolist() == [1, 1, 1, 1, 0]
    assert (make_rows(logits, sampling(top_p=0.6)).probs > 0)[0].tolist() == [1, 1, 1, 1, 0]
    assert (make_rows(logits, sampling(top_p=0.4)).probs > 0)[0].tolist() == [1, 0, 0, 0, 0]


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 12_000),
    scale=st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]),
    top_p=st.floats(1e-4, 1.0),
)
@example(seed=0, size=2675, scale=0.0, top_p=1 - 2**-53)  # the row sums to less than top_p
def test_selected_and_sorted_nucleus_are_the_same(seed, size, scale, top_p):
    row = logits_of(1, size, seed, scale).softmax(-1)
    top_p = torch.tensor(top_p, dtype=torch.float64)
    selected, by_sort = _nucleus_selected(row, top_p), _nucleus_sorted(row, top_p)
    if top_p < 1 - 1e-6 or top_p == 1:
        assert torch.equal(row >= selected, row >= by_sort)
    kept = row[row >= selected]
    assert kept.double().sum() >= top_p - 1e-6


def test_greedy_is_decided_without_a_division():
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0]])
    rows = make_rows(logits, Sampling(torch.zeros(()), torch.tensor(0.1), 1, greedy=True))
    assert rows.probs.tolist() == [[0, 1, 0, 0]]
    assert torch.equal(rows.logits, logits)


def test_precision_and_the_callers_tensor():
    half = logits_of(2, 40, dtype=torch.bfloat16)
    before = half.clone()
    rows = make_rows(half, sampling(0.7, 5, 0.9))
    assert rows.probs.dtype == torch.float32
    assert torch.equal(half, before)
    double = logits_of(2, 40, dtype=torch.float64)
    before = double.clone()
    for choice in (sampling(), sampling(0.7, 5, 0.9), Sampling(torch.ones(()), greedy=True)):
        assert make_rows(double, choice).probs.dtype == torch.float64
    assert torch.equal(double, before)


def test_deferred_rows_compute_only_what_is_asked_for(monkeypatch):
    seen = []

    def spy(logits, sampling):
        seen.append(logits.shape[0])
        return make_rows(logits, sampling)

    monkeypatch.setattr(probs, "make_rows", spy)
    logits = logits_of(9, 30)
    rows = DeferredRows(logits, sampling(0.8, 0, 0.9))
    assert rows.num_rows == 9
    assert torch.equal(rows.select([4]).probs, make_rows(logits[4:5], sampling(0.8, 0, 0.9)).probs)
    rows.select(torch.tensor([1, 7]))
    assert seen == [1, 2]
    full = make_rows(logits, sampling(0.8, 0, 0.9))
    assert torch.equal(rows.probs, full.probs)
    assert torch.equal(rows.logits, full.logits)
    assert seen == [1, 2, 9]


def test_select():
    table = torch.arange(12.0).view(4, 3)
    rows = Rows(table, table)
    for index in ([2], [3, 0], torch.tensor([3, 0])):
        assert torch.equal(rows.select(index).logits, table[index])
    assert rows.select([2]).probs.data_ptr() == table[2].data_ptr()  # one row: a view


def test_device_forms_of_the_filters_are_the_same():
    for seed, choice in enumerate(
        (sampling(0.7, 40), sampling(1.2, 0, 0.9), sampling(1.0, 9, 0.5))
    ):
        logits = logits_of(5, 3000, seed)
        with device_form(probs):
            expected = make_rows(logits, choice)
        assert torch.equal(make_rows(logits, choice).logits, expected.logits)


# ---------------------------------------------------------------- small pieces


def test_ratio():
    top = torch.tensor([0.0, 0.0, 1.0, 1.0, 3.0])
    bottom = torch.tensor([0.0, 2.0, 0.0, 2.0, 2.0])
    assert ratio(top, bottom).tolist() == [0, 0, 1, 0.5, 1]
    assert ratio(top, bottom, empty=1.0).tolist() == [1, 0, 1, 0.5, 1]


def test_masks_take_dead_duplicates_and_leave_the_table_alone():
    table = torch.tensor([[0.1, 0.2, 0.7]])
    tokens, where = torch.tensor([[2, 2, 0]]), torch.tensor([[True, False, False]])
    assert exclude(table, tokens, where).tolist() == [pytest.approx([0.1, 0.2, 0.0])]
    assert mask_tokens(table, tokens, where)[0, 2] == -math.inf
    assert mask_tokens(table, tokens, where)[0, :2].tolist() == pytest.approx([0.1, 0.2])
    assert table.tolist() == [pytest.approx([0.1, 0.2, 0.7])]


def test_without_keeps_the_law_of_tokens_that_underflow():
    logits = torch.tensor([[0.0, -200.0, -201.0]])
    assert logits.softmax(-1)[0, 1] == 0
    found = without(logits, torch.tensor([[0]]))
    assert found[0, 1].item() == pytest.approx(1 / (1 + math.exp(-1)))
    assert found[0, 0] == 0


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        ([0.5, 0.5], False),
        ([1.0, 0.0], False),
        ([0.5, math.nan], True),
        ([1.5, -0.5], True),
        ([0.0, 0.0], True),
        ([0.5, 0.4], True),
        ([math.inf, 0.0], True),
    ],
)
def test_faulty(row, bad):
    assert faulty(torch.tensor([row])).tolist() == [bad]


@pytest.mark.parametrize("size", [5, 256, 1000, 1024, 4097])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_largest_is_topk(size, count):
    logits = logits_of(6, size)
    logits[1] = -math.inf
    logits[1, size - 1] = 0.0  # one supported token, in the last and shortest block
    logits[2, : size // 2] = -math.inf
    values, tokens = largest(logits, count)
    assert torch.equal(values, logits.topk(count, dim=-1).values)
    real = values > -math.inf
    assert torch.equal(logits.gather(1, tokens)[real], values[real])
    assert (tokens < size).all()
    assert all(
        len(set(row[kept].tolist())) == kept.sum() for row, kept in zip(tokens, real, strict=True)
    )


@pytest.mark.parametrize("condition", [[True, True], [False, False], [True, False]])
def test_either_is_where(condition):
    condition = torch.tensor(condition)
    first, second = torch.rand(2, 5), torch.rand(2, 5)
    assert torch.equal(
        either(condition, first, second), torch.where(condition[:, None], first, second)
    )
    assert torch.equal(either(condition, first, 0.0), torch.where(condition[:, None], first, 0.0))
