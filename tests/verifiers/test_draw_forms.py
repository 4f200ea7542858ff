"""The draw of a device (constant shapes, no host) and that of a CPU give the same tokens."""

from __future__ import annotations

import pytest
import torch

from verifiers import probs
from verifiers.probs import inverse_cdf

ALMOST_ONE = 1 - 2.0**-53


def on_a_device(monkeypatch, weights, u):
    with monkeypatch.context() as patch:
        patch.setattr(probs, "on_host", lambda tensor: False)
        return inverse_cdf(weights, u)


@pytest.mark.parametrize("size", [1, 5, 256, 300, 512, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_forms_draw_the_same_token_and_one_with_weight(monkeypatch, size, dtype):
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(40, size, generator=generator, dtype=dtype)
    keep = torch.rand(40, 1, generator=generator)  # rows from dense to nearly empty
    weights *= torch.rand(40, size, generator=generator) < keep
    weights[torch.arange(40), torch.randint(size, (40,), generator=generator)] = 0.5
    u = torch.rand(40, 6, generator=generator, dtype=torch.float64)
    u[:, 0], u[:, 1] = 0.0, ALMOST_ONE
    expected = inverse_cdf(weights, u)
    assert torch.equal(on_a_device(monkeypatch, weights, u), expected)
    assert (weights.gather(1, expected) > 0).all()
    assert torch.equal(on_a_device(monkeypatch, weights, u[:, 2]), expected[:, 2])


def test_a_target_beyond_every_sum_means_the_last_token_with_weight():
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    index, before = probs._first_above(weights.double(), torch.tensor([[1.5, 0.0, 0.3]]).double())
    assert index.tolist() == [[3, 1, 3]]
    assert before[0, 1] == 0


def test_a_row_of_nan_still_gives_an_index_inside_the_row(monkeypatch):
    weights = torch.full((2, 300), float("nan"))
    drawn = on_a_device(monkeypatch, weights, torch.rand(2, 3).double())
    assert ((drawn >= 0) & (drawn < 300)).all()
