"""Backends against attention written out for one query and one head at a time."""

import pytest
import torch

from model_fi.attention import (
    AttentionShape,
    MatmulAttention,
    SdpaAttention,
    default_backend,
    fold_queries,
    unfold_heads,
)

BACKENDS = [MatmulAttention(), SdpaAttention()]


def naive(q, k, v, mask):
    t, heads, head_dim = q.shape
    out = torch.zeros(t, heads, head_dim)
    for row in range(t):
        for head in range(heads):
            kv = head // (heads // k.shape[0])
            keys, values = k[kv, : mask.shape[1]][mask[row]], v[kv, : mask.shape[1]][mask[row]]
            scores = keys @ q[row, head] / head_dim**0.5
            out[row, head] = scores.softmax(0) @ values
    return out.flatten(1)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("t", [1, 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
def test_backend_reads_only_what_the_mask_shows(backend, t, heads, kv_heads):
    q, k, v = torch.randn(t, heads, 8), torch.randn(kv_heads, 32, 8), torch.randn(kv_heads, 32, 8)
    mask = torch.rand(t, 20) < 0.5
    mask[:, 3] = True
    shape = AttentionShape(heads, kv_heads, 8, torch.float32)
    out = backend.begin(mask, shape)(q, k, v)
    assert out.shape == (t, heads * 8)
    torch.testing.assert_close(out, naive(q, k, v, mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_hidden_slots_weigh_exactly_nothing(backend):
    """However large their keys and values are, bit for bit."""
    q, k, v = torch.randn(2, 4, 8), torch.randn(2, 16, 8), torch.randn(2, 16, 8)
    mask = torch.arange(16).lt(9).expand(2, 16)
    attend = backend.begin(mask, AttentionShape(4, 2, 8, torch.float32))
    before = attend(q, k, v)
    k[:, 9:], v[:, 9:] = 1e4, -1e4
    assert torch.equal(attend(q, k, v), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_finite_when_a_row_sees_one_slot(dtype):
    q, k, v = (torch.randn(n, m, 8, dtype=dtype) * 8 for n, m in ((1, 4), (2, 16), (2, 16)))
    mask = torch.arange(16).eq(5)[None]
    out = MatmulAttention().begin(mask, AttentionShape(4, 2, 8, dtype))(q, k, v)
    torch.testing.assert_close(out.view(2, 2, 8), v[:, 5:6].expand(2, 2, 8))


def test_folding_round_trip():
    q = torch.randn(5, 6, 4)
    folded = fold_queries(q, 2)
    assert folded.shape == (2, 15, 4)
    assert torch.equal(unfold_heads(folded, 5), q.flatten(1))


def test_default_backend_follows_the_device():
    assert default_backend(torch.device("cpu")).name == "matmul"
    assert default_backend(torch.device("cuda")).name == "sdpa"
