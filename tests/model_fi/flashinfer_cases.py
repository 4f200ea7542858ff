"""Small problems for the FlashInfer double, and the loop over rows, heads and slots they test."""

import itertools
import math
import random

import numpy
import torch
from flashinfer_standin import BatchPrefillWithPagedKVCacheWrapper as Wrapper


def workspace():
    return torch.empty(64, dtype=torch.uint8)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def one_request(rows=3, slots=7, pages=(2, 0), page_size=4, q_data_type="float32", **options):
    """plan() arguments of one request, two heads over one kv head, head size 4."""
    last = slots - page_size * (len(pages) - 1)
    return {
        "qo_indptr": ints(0, rows),
        "paged_kv_indptr": ints(0, len(pages)),
        "paged_kv_indices": ints(*pages),
        "paged_kv_last_page_len": ints(last),
        "num_qo_heads": 2,
        "num_kv_heads": 1,
        "head_dim_qk": 4,
        "page_size": page_size,
        "q_data_type": q_data_type,
    } | options


def tensors(rows=3, pages=3, page_size=4):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(rows, 2, 4, generator=generator)
    return q, torch.randn(pages, 2, page_size, 1, 4, generator=generator)


def graph_wrapper(batch=1, pages=4, mask_bytes=16, **options):
    buffers = {
        "qo_indptr_buf": torch.zeros(batch + 1, dtype=torch.int32),
        "paged_kv_indptr_buf": torch.zeros(batch + 1, dtype=torch.int32),
        "paged_kv_indices_buf": torch.zeros(pages, dtype=torch.int32),
        "paged_kv_last_page_len_buf": torch.zeros(batch, dtype=torch.int32),
    }
    if mask_bytes:
        buffers["custom_mask_buf"] = torch.zeros(mask_bytes, dtype=torch.uint8)
        buffers["mask_indptr_buf"] = torch.zeros(batch + 1, dtype=torch.int32)
    buffers |= options
    return Wrapper(workspace(), use_cuda_graph=True, **buffers), buffers


def naive(case, masks):
    """Slot by slot in doubles: out [nnz, heads, d] and the lse [nnz, heads] in base e."""
    q, keys, values = (case[name].double() for name in ("q", "k", "v"))
    out, lse = torch.zeros(*q.shape[:2], values.shape[-1]).double(), torch.zeros(q.shape[:2])
    group = q.shape[1] // case["kv_heads"]
    row = 0
    for (count, slots, pages), mask in zip(case["requests"], masks, strict=True):
        for i, head in itertools.product(range(count), range(q.shape[1])):
            weight = 0.0
            for slot in range(slots):
                place = pages[slot // case["page_size"]], slot % case["page_size"], head // group
                if mask[i, slot]:
                    w = math.exp(float(q[row + i, head] @ keys[place]) * case["sm_scale"])
                    weight += w
                    out[row + i, head] += w * values[place]
            out[row + i, head] /= weight
            lse[row + i, head] = math.log(weight)
        row += count
    return out, lse


def random_case(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    page_size, batch = rng.randint(1, 5), rng.randint(1, 3)
    kv_heads, group = rng.randint(1, 3), rng.choice([1, 2, 3, 5])
    free = rng.sample(range(12), 12)
    requests = []
    for _ in range(batch):
        pages = [free.pop() for _ in range(rng.randint(1, 4))]
        slots = page_size * (len(pages) - 1) + rng.randint(1, page_size)
        requests.append((rng.randint(0, min(slots, 4)), slots, pages))
    total, size, size_vo = sum(r[0] for r in requests), rng.choice([4, 8]), 8
    cache = (12, page_size, kv_heads)
    return {
        "requests": requests,
        "page_size": page_size,
        "kv_heads": kv_heads,
        "sm_scale": rng.choice([1 / math.sqrt(size), 0.3]),
        "q": torch.randn(total, kv_heads * group, size, generator=generator),
        "k": torch.randn(*cache, size, generator=generator),
        "v": torch.randn(*cache, size_vo, generator=generator),
        "rng": rng,
        "generator": generator,
    }


def masks_of(case, kind):
    masks = []
    for count, slots, _ in case["requests"]:
        mask = torch.rand(count, slots, generator=case["generator"]) < 0.5
        mask[:, 0] = True
        if kind == "none":
            mask[:] = True
        if kind == "causal":
            mask = torch.arange(slots) <= torch.arange(count)[:, None] + slots - count
        masks.append(mask)
    return masks


def plan_of(case, kind, masks):
    starts = [0, *itertools.accumulate(count for count, _, _ in case["requests"])]
    pages = [0, *itertools.accumulate(len(p) for _, _, p in case["requests"])]
    plan = {
        "qo_indptr": ints(*starts),
        "paged_kv_indptr": ints(*pages),
        "paged_kv_indices": ints(*(page for _, _, p in case["requests"] for page in p)),
        "paged_kv_last_page_len": ints(
            *(s - case["page_size"] * (len(p) - 1) for _, s, p in case["requests"])
        ),
        "num_qo_heads": case["q"].shape[1],
        "num_kv_heads": case["kv_heads"],
        "head_dim_qk": case["q"].shape[2],
        "head_dim_vo": case["v"].shape[3],
        "page_size": case["page_size"],
        "sm_scale": case["sm_scale"],
        "q_data_type": "float32",
        "causal": kind == "causal",
    }
    if kind == "custom":
        plan["custom_mask"] = torch.cat([mask.flatten() for mask in masks])
        plan["causal"] = case["rng"].random() < 0.5  # without effect beside a mask
    if kind == "packed":
        packed = [numpy.packbits(mask.flatten().numpy(), bitorder="little") for mask in masks]
        plan["packed_custom_mask"] = torch.from_numpy(numpy.concatenate(packed))
        plan["custom_mask"] = torch.zeros(1, dtype=torch.bool)  # ignored
    return plan
