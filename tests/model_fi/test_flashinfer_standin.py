"""The FlashInfer double against a loop over rows, heads and slots, and the real signatures."""

import importlib.util
import inspect
import itertools
import math
import sys
from pathlib import Path

import numpy
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import flashinfer_standin as standin
from flashinfer_cases import (
    graph_wrapper,
    masks_of,
    naive,
    one_request,
    plan_of,
    random_case,
    tensors,
    workspace,
)

Wrapper = standin.BatchPrefillWithPagedKVCacheWrapper


@pytest.mark.parametrize("kind", ["none", "causal", "custom", "packed"])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_naive_loop(seed, graph, kind):
    case = random_case(seed)
    masks = masks_of(case, kind)
    plan = plan_of(case, kind, masks)
    layout = case["rng"].choice(["NHD", "HND"])
    wrapper = Wrapper(workspace(), layout)
    if graph:
        size = 64 * len(masks) if kind in ("custom", "packed") else 0
        wrapper, _ = graph_wrapper(len(masks), 12, size, kv_layout=layout)
    wrapper.plan(**plan)
    cache = case["k"], case["v"]
    if layout == "HND":
        cache = tuple(c.transpose(1, 2).contiguous() for c in cache)
    if cache[0].shape == cache[1].shape and case["rng"].random() < 0.5:
        cache = torch.stack(cache, 1)
    out, lse = wrapper.run(case["q"], cache, return_lse=True)
    expected, expected_lse = naive(case, masks)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse * math.log(2), expected_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", ["none", "causal", "custom", "packed"])
def test_single_prefill_equals_the_wrapper(kind, layout):
    q, cache = tensors(pages=1, page_size=7)
    mask = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[:, 0] = True
    options, plan = {"causal": kind == "causal"}, {"causal": kind == "causal"}
    if kind == "custom":
        options["custom_mask"], plan["custom_mask"] = mask, mask.flatten()
    if kind == "packed":
        options["packed_custom_mask"] = standin.packbits(mask.flatten(), "little")
        plan["custom_mask"] = mask.flatten()
    wrapper = Wrapper(workspace())
    wrapper.plan(**one_request(pages=(0,), page_size=7, **plan))
    k, v = cache[0].unbind(0)
    if layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    out, lse = standin.single_prefill_with_kv_cache(
        q, k, v, kv_layout=layout, return_lse=True, **options
    )
    expected, expected_lse = wrapper.run_return_lse(q, cache)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


@pytest.mark.parametrize("bitorder", ["big", "little"])
def test_packbits_is_numpys_segment_by_segment(bitorder):
    bits = torch.rand(40, generator=torch.Generator().manual_seed(2)) < 0.5
    bounds = [0, 4, 4, 12, 29, 40]
    packed, indptr = standin.segment_packbits(bits, torch.tensor(bounds), bitorder)
    parts = [
        numpy.packbits(bits[a:b].numpy(), bitorder=bitorder) for a, b in itertools.pairwise(bounds)
    ]
    assert packed.tolist() == numpy.concatenate(parts).tolist()
    assert indptr.tolist() == [0, *itertools.accumulate(len(part) for part in parts)]
    whole = standin.packbits(bits, bitorder)
    assert whole.tolist() == numpy.packbits(bits.numpy(), bitorder=bitorder).tolist()


def test_half_inputs_give_their_dtype_and_fp32_accuracy():
    q, cache = tensors()
    wrapper = Wrapper(workspace())
    wrapper.plan(**one_request(q_data_type=torch.bfloat16, o_data_type=torch.float32))
    out = wrapper.run(q.bfloat16(), cache.bfloat16())
    wrapper.plan(**one_request())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, wrapper.run(q.bfloat16().float(), cache.bfloat16().float()))
    wrapper.plan(**one_request(q_data_type=torch.bfloat16))
    torch.testing.assert_close(wrapper.run(q.bfloat16(), cache.bfloat16()), out.bfloat16())


def test_out_lse_base_and_layout():
    q, cache = tensors()
    wrapper = Wrapper(workspace())
    wrapper.plan(**one_request())
    expected, lse = wrapper.run(q, cache, return_lse=True)
    out, sums = torch.empty_like(q), torch.empty(2, 3)
    got = wrapper.run(q, cache, out=out, lse=sums, return_lse=True, lse_base="ln", lse_layout="HN")
    assert got[0] is out
    assert got[1] is sums
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(sums.T / math.log(2), lse)


def test_a_row_without_slots_is_zero():
    q, cache = tensors()
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1] = False
    wrapper = Wrapper(workspace())
    wrapper.plan(**one_request(custom_mask=mask.flatten()))
    out, lse = wrapper.run(q, cache, return_lse=True)
    assert out[1].eq(0).all()
    assert lse[1].eq(-math.inf).all()
    assert not out[0].eq(0).any()


def test_slots_past_the_length_and_other_pages_are_not_read():
    q, cache = tensors()
    wrapper = Wrapper(workspace())
    wrapper.plan(**one_request())
    expected = wrapper.run(q, cache)
    cache[1], cache[0, :, 3] = math.nan, math.nan
    torch.testing.assert_close(wrapper.run(q, cache), expected)


def test_a_nan_value_in_a_masked_slot_shows():
    q, cache = tensors()
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[:, 5] = False
    wrapper = Wrapper(workspace())
    wrapper.plan(**one_request(custom_mask=mask.flatten()))
    cache[0, 1, 1] = math.nan
    assert wrapper.run(q, cache).isnan().all()


def test_modules_take_the_place_of_the_package(monkeypatch):
    for name, module in standin.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    import flashinfer
    from flashinfer.quantization import segment_packbits

    assert flashinfer.BatchPrefillWithPagedKVCacheWrapper is Wrapper
    assert segment_packbits is standin.segment_packbits
    assert importlib.util.find_spec("flashinfer") is not None


@pytest.mark.parametrize(
    "name",
    [
        "BatchPrefillWithPagedKVCacheWrapper.__init__",
        "BatchPrefillWithPagedKVCacheWrapper.plan",
        "BatchPrefillWithPagedKVCacheWrapper.run",
        "BatchPrefillWithPagedKVCacheWrapper.reset_workspace_buffer",
        "BatchPrefillWithPagedKVCacheWrapper.prewarm_paged_kv_stride_variant",
        "single_prefill_with_kv_cache",
        "packbits",
        "segment_packbits",
    ],
)
def test_every_call_of_the_double_is_a_call_of_flashinfer(name):
    real = pytest.importorskip("flashinfer", reason="flashinfer is not installed")
    if real.__version__ != standin.__version__:
        pytest.skip(f"flashinfer {real.__version__}: the double is of {standin.__version__}")
    ours, theirs = standin, real
    for part in name.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    ours = inspect.signature(ours).parameters
    theirs = inspect.signature(theirs).parameters
    positions = {parameter: i for i, parameter in enumerate(theirs)}
    for i, parameter in enumerate(ours.values()):
        there = theirs[parameter.name]
        assert parameter.default == there.default, parameter.name
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert there.kind is parameter.kind
            assert positions[parameter.name] == i
    needed = {p.name for p in theirs.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL}
    assert needed <= set(ours)
