"""Draws by inverted cumulative sums: that of a device and that of a CPU give the same tokens."""

import math

import pytest
import torch
from toys import device_form

from verifiers import DeferredRows, Rows, Sampling, coin, draws, inverse_cdf, make_rows
from verifiers.draws import PLENTY, draw_without
from verifiers.probs import BLOCK, without
from verifiers.rrs_wor import remaining, weights_left


@pytest.mark.parametrize("size", [1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_cdf_is_a_search_in_the_cumulative_sum(size, dtype):
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(4, size, generator=generator).to(dtype) ** 3
    weights[:, 1:] *= torch.rand(4, size - 1, generator=generator) < 0.5
    weights[0] = 0
    weights[0, size // 2] = 1e-30
    u = torch.rand(4, 300, generator=generator, dtype=torch.float64)
    sums = weights.double().cumsum(-1)
    expected = torch.searchsorted(sums, u * sums[:, -1:], right=True)
    assert torch.equal(inverse_cdf(weights, u), expected)
    assert torch.equal(inverse_cdf(weights, u[:, 0]), expected[:, 0])
    with device_form(draws):
        assert torch.equal(inverse_cdf(weights, u), expected)


@pytest.mark.parametrize("size", [3, 700])
def test_inverse_cdf_never_returns_a_token_of_weight_zero(size):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(50, size, generator=generator)
    weights[torch.rand(50, size, generator=generator) < 0.7] = 0
    weights[:, 0], weights[:, -1] = 0, 0
    weights[:, size // 2] += 1e-3
    u = torch.tensor([0.0, 5e-324, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64).expand(50, 5)
    assert (weights.gather(1, inverse_cdf(weights, u)) > 0).all()
    with device_form(draws):
        assert (weights.gather(1, inverse_cdf(weights, u)) > 0).all()


def test_inverse_cdf_stays_in_range_on_rows_without_a_law():
    for value in (0.0, math.nan):
        weights = torch.full((2, 600), value)
        u = torch.tensor([0.2, 0.9], dtype=torch.float64)
        index = inverse_cdf(weights, u)
        assert ((index >= 0) & (index < 600)).all()
        with device_form(draws):
            index = inverse_cdf(weights, u)
        assert ((index >= 0) & (index < 600)).all()


def test_coin_takes_its_threshold_strictly():
    u = torch.tensor([0.0, 0.25, 0.25, 1 - 2**-53], dtype=torch.float64)
    c = torch.tensor([0.0, 0.25, 0.26, 1.0])
    assert coin(u, c).tolist() == [False, False, True, True]


def test_masses_of_the_tail_survive():
    """A cumulative sum in fp32 would lose 2 million tokens of 1e-9 beside a token of mass 1."""
    weights = torch.full((1, 100_000), 1e-9)
    weights[0, 0] = 1.0
    u = torch.tensor([[1 - 5e-5]], dtype=torch.float64)
    assert inverse_cdf(weights, u).item() == pytest.approx(50_000, abs=6)


@pytest.mark.parametrize("size", [1, 5, 256, 300, 512, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_forms_draw_the_same_token_and_one_with_weight(size, dtype):
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(40, size, generator=generator, dtype=dtype)
    keep = torch.rand(40, 1, generator=generator)  # rows from dense to nearly empty
    weights *= torch.rand(40, size, generator=generator) < keep
    weights[torch.arange(40), torch.randint(size, (40,), generator=generator)] = 0.5
    u = torch.rand(40, 6, generator=generator, dtype=torch.float64)
    u[:, 0], u[:, 1] = 0.0, 1 - 2.0**-53
    expected = inverse_cdf(weights, u)
    assert (weights.gather(1, expected) > 0).all()
    with device_form(draws):
        assert torch.equal(inverse_cdf(weights, u), expected)
        assert torch.equal(inverse_cdf(weights, u[:, 2]), expected[:, 2])


def test_a_target_beyond_every_sum_means_the_last_token_with_weight():
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    index, share = draws._first_above(weights.double(), torch.tensor([[1.5, 0.0, 0.3]]).double())
    assert index.tolist() == [[3, 1, 3]]
    assert share[0, :2].tolist() == [1, 0]


def test_block_sums_of_fp32_leave_the_law_alone():
    """The share of a block is carried over exactly, so every entry keeps its probability."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(1, 3 * BLOCK, generator=generator) ** 8
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    drawn = inverse_cdf(weights, u[None])[0].bincount(minlength=3 * BLOCK) / 200_000
    law = weights[0].double() / weights.double().sum()
    assert (drawn - law).abs().max() < 2 / 200_000  # one grid point at either end


@pytest.mark.parametrize("peak", [0.0, 12.0, 25.0])  # the last: next to nothing is left beside it
def test_removing_the_drawn_mass_is_the_masked_softmax(peak):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 3000, generator=generator, dtype=torch.float64)
    logits[:, 7] += peak
    rows = make_rows(logits, Sampling(torch.tensor(1.0)))
    tokens = torch.tensor([[7, 11]]).expand(5, 2)
    where = torch.tensor([[True, True], [True, False], [True, True], [True, False], [True, True]])
    assert (rows.probs[:, 7] > 1 - PLENTY).all() == (peak == 25.0)
    for u in (0.0, 0.1, 0.5, 0.999):
        u = torch.full((5,), u, dtype=torch.float64)
        law = without(rows.logits, tokens, where)
        assert torch.equal(draw_without(rows, tokens, where, u), inverse_cdf(law, u))
        assert torch.equal(
            inverse_cdf(weights_left(rows, tokens), u), inverse_cdf(remaining(logits, tokens), u)
        )


def test_a_tail_that_underflowed_is_still_drawn_from():
    """Beside a token 200 nats above, every probability of an fp32 row is 0; the tail has a law."""
    logits = torch.zeros(1, 600)
    logits[0, 3] = 200.0
    rows = DeferredRows(logits, Sampling(torch.tensor(1.0)))
    u = torch.tensor([0.5], dtype=torch.float64)
    assert rows.probs.count_nonzero() == 1
    assert draw_without(rows, torch.tensor([[3]]), None, u) == 300
    assert inverse_cdf(weights_left(Rows(*rows.select([0])), torch.tensor([[3]])), u) == 300
