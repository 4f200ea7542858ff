"""Laid-out layers against `F.linear` on the matrix as it was."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from model_fi.dense import Dense, can_pack, is_plain, lay_out


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("t", [0, 1, 2, 7, 70])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [24, 160], ids=["wide input", "wide output"])
def test_laid_out_layers_compute_the_same(pack, t, bias, width):
    layers = [nn.Linear(64, out, bias=bias) for out in (width, width // 2)]
    x = torch.randn(t, 64)
    expected = torch.cat([F.linear(x, p.weight.clone(), p.bias) for p in layers], dim=1)
    before = [p.weight.clone() for p in layers]
    dense = lay_out(layers, pack)
    torch.testing.assert_close(dense(x), expected, rtol=1e-5, atol=1e-5)
    residual = torch.randn(expected.shape)
    both = dense(x, residual.clone())
    torch.testing.assert_close(both, expected + residual, rtol=1e-5, atol=1e-5)
    for layer, weight in zip(layers, before, strict=True):
        assert torch.equal(layer.weight, weight)
        assert (
            layer.weight.untyped_storage().data_ptr() == dense.weight.untyped_storage().data_ptr()
        )


def test_packed_copy_is_used_for_several_tokens_only():
    dense = Dense(torch.randn(8, 4), None, can_pack(torch.randn(8, 4)))
    if dense.packed is None:
        pytest.skip("oneDNN is not there")
    one, two = torch.randn(1, 4), torch.randn(2, 4)
    expected = F.linear(two, dense.weight)
    dense.weight = torch.zeros(8, 4)
    torch.testing.assert_close(dense(two), expected)
    assert not dense(one).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_not_packed(dtype):
    assert not can_pack(torch.zeros(4, 4, dtype=dtype))
    layer = nn.Linear(4, 8, dtype=dtype)
    x = torch.randn(3, 4, dtype=dtype)
    expected = layer(x)
    torch.testing.assert_close(lay_out([layer], True)(x), expected)


def test_what_is_plain():
    class Quantised(nn.Linear):
        """Not ours to touch."""

    assert is_plain([nn.Linear(4, 4), nn.Linear(4, 8)])
    assert not is_plain([nn.Linear(4, 4), Quantised(4, 4)])
    assert not is_plain([nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.float64)])
