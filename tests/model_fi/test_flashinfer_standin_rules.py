"""The FlashInfer double: what graph mode reads when, and what is refused."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from flashinfer_cases import graph_wrapper, ints, one_request, tensors, workspace
from flashinfer_standin import BatchPrefillWithPagedKVCacheWrapper as Wrapper
from flashinfer_standin import packbits


def test_graph_mode_runs_on_the_buffers():
    """Bits and page indices written after plan() count; plan() without a mask keeps the bits."""
    q, cache = tensors()
    wrapper, buffers = graph_wrapper()
    mask = torch.ones(3, 7, dtype=torch.bool).tril(4)
    wrapper.plan(**one_request(custom_mask=torch.ones(21, dtype=torch.bool)))
    everything = wrapper.run(q, cache)
    buffers["custom_mask_buf"][:3] = packbits(mask.flatten(), "little")
    masked = wrapper.run(q, cache)
    plain = Wrapper(workspace())
    plain.plan(**one_request(causal=True))
    torch.testing.assert_close(masked, plain.run(q, cache))
    assert not torch.allclose(masked, everything)
    wrapper.plan(**one_request())
    torch.testing.assert_close(wrapper.run(q, cache), masked)
    buffers["paged_kv_indices_buf"][0] = 1
    plain.plan(**one_request(pages=(1, 0), causal=True))
    torch.testing.assert_close(wrapper.run(q, cache), plain.run(q, cache))


def test_outside_graph_mode_plan_copies():
    q, cache = tensors()
    arguments = one_request(packed_custom_mask=torch.full((3,), 255, dtype=torch.uint8))
    wrapper = Wrapper(workspace())
    wrapper.plan(**arguments)
    expected = wrapper.run(q, cache)
    arguments["packed_custom_mask"].fill_(1)
    arguments["paged_kv_indices"].fill_(1)
    torch.testing.assert_close(wrapper.run(q, cache), expected)


def test_graph_mode_refuses_what_its_buffers_do_not_allow():
    ones = torch.ones(21, dtype=torch.bool)
    with pytest.raises(ValueError, match="paged_kv_indices"):
        graph_wrapper(paged_kv_indices_buf=None)
    with pytest.raises(ValueError, match="uint8"):
        graph_wrapper(custom_mask_buf=torch.zeros(16, dtype=torch.bool))
    with pytest.raises(ValueError, match="int32"):
        graph_wrapper(qo_indptr_buf=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="elements"):
        graph_wrapper(batch=2, paged_kv_last_page_len_buf=ints(0))
    with pytest.raises(ValueError, match="go together"):
        graph_wrapper(mask_indptr_buf=None)
    with pytest.raises(ValueError, match="use_cuda_graph"):
        Wrapper(workspace(), custom_mask_buf=torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="custom_mask_buf and mask_indptr_buf"):
        graph_wrapper(mask_bytes=0)[0].plan(**one_request(custom_mask=ones))
    with pytest.raises(ValueError, match="its buffer 2"):
        graph_wrapper(mask_bytes=2)[0].plan(**one_request(custom_mask=ones))
    with pytest.raises(ValueError, match="its buffer 1"):
        graph_wrapper(pages=1)[0].plan(**one_request())
    with pytest.raises(ValueError, match="fixed at 2"):
        graph_wrapper(batch=2)[0].plan(**one_request())


def test_graph_mode_row_capacity():
    wrapper, _ = graph_wrapper()
    wrapper.plan(**one_request(rows=3))
    wrapper.plan(**one_request(rows=2))
    with pytest.raises(ValueError, match="capacity is 3"):
        wrapper.plan(**one_request(rows=4))
    wrapper, _ = graph_wrapper(max_total_num_rows=4)
    wrapper.plan(**one_request(rows=3))
    wrapper.plan(**one_request(rows=4))


def test_run_refuses_mask_bits_past_the_buffer():
    q, cache = tensors()
    wrapper, _ = graph_wrapper(mask_bytes=2)
    wrapper.plan(**one_request())
    with pytest.raises(ValueError, match="mask bytes 0 to 3"):
        wrapper.run(q, cache)


def test_run_refuses_lengths_that_plan_did_not_see():
    q, cache = tensors()
    wrapper, buffers = graph_wrapper()
    wrapper.plan(**one_request())
    buffers["paged_kv_last_page_len_buf"][0] = 4
    with pytest.raises(ValueError, match="planned"):
        wrapper.run(q, cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qo_indptr": torch.tensor([0, 3])}, "int32"),
        ({"qo_indptr": ints(1, 3)}, "start with 0"),
        ({"paged_kv_indptr": ints(0, 1)}, "page indices"),
        ({"paged_kv_indptr": ints(0, 3)}, "page indices"),
        ({"paged_kv_indptr": ints(0, 0), "paged_kv_indices": ints()}, "needs a page"),
        ({"paged_kv_last_page_len": ints(0)}, "last pages"),
        ({"paged_kv_last_page_len": ints(5)}, "last pages"),
        ({"paged_kv_last_page_len": ints(3, 3)}, "sizes"),
        ({"num_kv_heads": 3}, "kv heads"),
        ({"q_data_type": torch.float64}, "not supported"),
        ({"custom_mask": torch.ones(20, dtype=torch.bool)}, "21 elements"),
        ({"custom_mask": torch.ones(3, 7, dtype=torch.bool)}, "1-D"),
        ({"custom_mask": torch.ones(21)}, "bool"),
        ({"packed_custom_mask": torch.ones(4, dtype=torch.uint8)}, "3 elements"),
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "not modelled"),
    ],
)
def test_plan_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        Wrapper(workspace()).plan(**one_request(**change))


def test_plan_refuses_head_sizes_and_dtypes_of_a_narrower_subclass():
    class Narrow(Wrapper):
        dtypes = (torch.float16, torch.bfloat16)
        head_dims = (64, 128, 256, 512)

    with pytest.raises(ValueError, match="float32"):
        Narrow(workspace()).plan(**one_request())
    with pytest.raises(ValueError, match="head sizes 4"):
        Narrow(workspace()).plan(**one_request(q_data_type="float16"))


def test_run_refuses():
    q, cache = tensors()
    wrapper = Wrapper(workspace())
    with pytest.raises(ValueError, match="before plan"):
        wrapper.run(q, cache)
    wrapper.plan(**one_request())
    bad = {
        "q has 2 rows": (q[:2], cache),
        "q is torch.float16": (q.half(), cache),
        "q is on meta": (q.to("meta"), cache),
        "cache torch.float16": (q, cache.half()),
        "cache .*planned": (q, cache.transpose(2, 3)),
        "of a cache of 2": (q, cache[:2]),
        "must be .k, v. or 5-D": (q, list(cache.unbind(1))),
    }
    for message, arguments in bad.items():
        with pytest.raises(ValueError, match=message):
            wrapper.run(*arguments)
    with pytest.raises(ValueError, match="backend"):
        Wrapper(workspace(), backend="fa3")
    with pytest.raises(TypeError):
        wrapper.run(q, cache, sinks=torch.zeros(2))
