"""k_seq's divisor: the two forms of the search find the same one, feasible, and the smallest."""

import pytest
import torch
from toys import device_form, random_rows

from verifiers import k_seq
from verifiers.k_seq import expected_offers, smallest_divisor


def slack(g, mass, q, live):
    return g - expected_offers(torch.minimum(q, mass / g[:, None]).sum(-1), live)


def on_a_device(*arguments):
    with device_form(k_seq):
        return smallest_divisor(*arguments)


@pytest.fixture(params=[torch.float64, torch.float32])
def rows(request):
    """(mass, q, live): budgets from 0 to 1, one to five children, some tokens filtered."""
    p = random_rows(200, 7, 0, dtype=request.param).probs
    q = random_rows(200, 7, 1, dtype=request.param).probs
    q[:20] = p[:20]  # a double root at g = 1
    budget = torch.linspace(0, 1, 11, dtype=request.param).repeat(19)[:200]
    live = torch.arange(5) <= torch.arange(200)[:, None] % 5
    return p * budget[:, None], q, live


def test_it_is_feasible_and_the_smallest(rows):
    mass, q, live = rows
    eps = torch.finfo(mass.dtype).eps
    for g in (smallest_divisor(*rows), on_a_device(*rows)):
        assert (g >= 1).all()
        assert (g <= live.sum(-1)).all()
        assert (slack(g, mass, q, live) >= -8 * eps).all()
        # slack grows slowest at a double root: there g - 1 is the root of the precision
        lower = (g - 30 * max(1e-12, 8 * eps) ** 0.5).clamp(min=1)
        assert ((slack(lower, mass, q, live) < 0) | (lower == 1)).all()


def test_both_forms_find_the_same(rows):
    device, host = on_a_device(*rows), smallest_divisor(*rows)
    single = (rows[0] - rows[1]).abs().amax(-1) > 0  # not the double roots
    tight = 1e-9 if device.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(device[single], host[single], atol=tight, rtol=0)
    torch.testing.assert_close(device, host, atol=4e-6 if tight == 1e-9 else 4e-3, rtol=0)


def test_one_child_needs_no_division():
    p, q = random_rows(6, 5, 2).probs, random_rows(6, 5, 3).probs
    assert smallest_divisor(p, q, torch.ones(6, 1, dtype=torch.bool)).tolist() == [1.0] * 6


def test_a_row_without_a_law_ends_the_search():
    nothing = torch.full((1, 5), torch.nan)
    rows = (nothing, torch.full((1, 5), 0.2), torch.ones(1, 3, dtype=torch.bool))
    for g in (smallest_divisor(*rows), on_a_device(*rows)):
        assert g.shape == (1,)
