"""A double of FlashInfer 0.7.4's paged prefill attention in plain torch, for machines without CUDA.

Written from FlashInfer's documentation alone, and stricter than it: what the documentation leaves
undefined (a wrong dtype or shape, a length plan() did not see, an argument not modelled) raises
ValueError or TypeError, so that code which passes here uses only what is documented. It checks how
the interface is used; it says nothing about the real kernels' numbers.

Choices that the documentation does not fix: a row that may attend to nothing gives output 0 and lse
-inf; masked slots below the key length get weight 0, so a NaN value in one still shows. float32 and
any head size are allowed, for toy models; set `dtypes`, `head_dims` in a subclass for a refusal.

A test imports it after `sys.path.insert(0, str(Path(__file__).parent))`; `modules()` puts it in the
place of the package.
"""

import functools
import importlib.machinery
import math
import types

import torch
from flashinfer_standin_ops import (
    as_dtype,
    attend,
    causal_mask,
    packbits,
    packed_size,
    request_lengths,
    require,
    require_array,
    require_rows,
    segment_packbits,
    single_prefill_with_kv_cache,
    unpack,
)
from torch import Tensor

__version__ = "0.7.4"


class BatchPrefillWithPagedKVCacheWrapper:
    """The double of flashinfer.BatchPrefillWithPagedKVCacheWrapper (backends auto and fa2).

    Everything run() uses is read from the arrays kept by plan(): copies, or in graph mode the
    caller's buffers, so that a page index or a mask bit written between plan() and run() counts.
    Lengths may not be changed that way: the schedule that plan() makes on the host depends on them.
    """

    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    head_dims: tuple[int, ...] | None = None  # None: any

    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None,
        custom_mask_buf=None, mask_indptr_buf=None, backend="auto", *, max_total_num_rows=None,
    ):  # fmt: skip
        require(kv_layout in ("NHD", "HND"), f"kv_layout must be NHD or HND, got {kv_layout!r}")
        require(backend in ("auto", "fa2"), f"backend {backend!r} is not modelled")
        self._layout, self._graph, self._plan = kv_layout, use_cuda_graph, None
        self._set_workspace(float_workspace_buffer)
        self._arrays = {
            "qo_indptr": qo_indptr_buf,
            "paged_kv_indptr": paged_kv_indptr_buf,
            "paged_kv_indices": paged_kv_indices_buf,
            "paged_kv_last_page_len": paged_kv_last_page_len_buf,
            "custom_mask": custom_mask_buf,
            "mask_indptr": mask_indptr_buf,
        }
        self._capacity = max_total_num_rows
        if use_cuda_graph:
            self._check_buffers()
        else:
            given = [name for name, buffer in self._arrays.items() if buffer is not None]
            require(not given, f"buffers without use_cuda_graph have no effect: {given}")
            require(max_total_num_rows is None, "max_total_num_rows needs use_cuda_graph")

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._graph

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
        """Other workspaces on the same device; a new plan() is needed afterwards."""
        self._set_workspace(float_workspace_buffer)
        require(int_workspace_buffer.device == self._device, "workspaces on two devices")
        self._plan = None

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, *, head_dim_vo=None, custom_mask=None,
        packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", sm_scale=None,
        window_left=-1, q_data_type="float16", kv_data_type=None, o_data_type=None,
        non_blocking=True, fixed_split_size=None, disable_split_kv=False, uniform_q_len=None,
    ):  # fmt: skip
        """Index arrays int32: qo_indptr [b + 1], paged_kv_indptr [b + 1], paged_kv_indices
        [paged_kv_indptr[-1]], paged_kv_last_page_len [b] in 1..page_size. custom_mask: flat bool of
        sum(q_len * kv_len); packed_custom_mask: segment_packbits of it (little), taken first; both
        override causal. sm_scale: 1 / sqrt(head_dim_qk). Raises ValueError for anything else.
        """
        dtypes = [as_dtype(q_data_type)]
        dtypes += [as_dtype(d) if d is not None else dtypes[0] for d in (kv_data_type, o_data_type)]
        head_dim_vo = head_dim_qk if head_dim_vo is None else head_dim_vo
        require(all(d in self.dtypes for d in dtypes), f"dtypes {dtypes} are not supported")
        require(num_qo_heads % num_kv_heads == 0, f"{num_qo_heads} heads, {num_kv_heads} kv heads")
        require(
            self.head_dims is None or {head_dim_qk, head_dim_vo} <= set(self.head_dims),
            f"head sizes {head_dim_qk} and {head_dim_vo}: only {self.head_dims}",
        )
        require(pos_encoding_mode == "NONE" and window_left == -1, "RoPE, windows: not modelled")
        require(fixed_split_size is None or not self._graph, "fixed_split_size in graph mode")
        arrays = {
            "qo_indptr": qo_indptr,
            "paged_kv_indptr": paged_kv_indptr,
            "paged_kv_indices": paged_kv_indices,
            "paged_kv_last_page_len": paged_kv_last_page_len,
        }
        for name, array in arrays.items():
            require_array(name, array, torch.int32)
            require(array.device.type in ("cpu", self._device.type), f"{name} on {array.device}")
        lengths = request_lengths(arrays, page_size)
        used, given = int(paged_kv_indptr[-1]), paged_kv_indices.numel()
        require(used == given, f"{given} page indices, paged_kv_indptr ends at {used}")
        arrays |= self._pack(lengths, custom_mask, packed_custom_mask)
        self._keep(arrays, sum(rows for rows, _ in lengths))
        self._plan = types.SimpleNamespace(
            lengths=lengths, heads=num_qo_heads, kv_heads=num_kv_heads, page_size=page_size,
            head_dim=head_dim_qk, head_dim_vo=head_dim_vo, causal=causal, dtypes=dtypes,
            sm_scale=1 / math.sqrt(head_dim_qk) if sm_scale is None else sm_scale,
        )  # fmt: skip

    def prewarm_paged_kv_stride_variant(self, variant: str = "independent"):
        """Only checked: after plan(), before a capture with k and v of different strides."""
        require(self._plan is not None, "prewarm_paged_kv_stride_variant before plan")
        require(variant == "independent", f"unknown variant {variant!r}")

    @torch.no_grad()
    def run(
        self, q, paged_kv_cache, *, out=None, lse=None, return_lse=False, lse_base="log2",
        lse_layout="NH", enable_pdl=None,
    ):  # fmt: skip
        """q [qo_indptr[-1], heads, head_dim_qk]; paged_kv_cache (k, v), each [pages, page_size,
        kv_heads, d] (HND: [pages, kv_heads, page_size, d]), or one tensor with a dimension of 2
        after the pages -> out [qo_indptr[-1], heads, head_dim_vo], and if asked for the lse
        [qo_indptr[-1], heads] fp32 (HN: transposed). Raises ValueError unless it is as planned.
        """
        plan, arrays = self._plan, self._arrays
        require(plan is not None, "run before plan")
        require(lse_base in ("log2", "ln") and lse_layout in ("NH", "HN"), "lse_base, lse_layout")
        require(lse is None or return_lse, "lse without return_lse")
        require_rows(q, plan.heads, plan.head_dim, plan.dtypes[0], self._device)
        lengths = request_lengths(arrays, plan.page_size)
        require(lengths == plan.lengths, f"planned (q, kv) lengths {plan.lengths}, now {lengths}")
        total = sum(rows for rows, _ in lengths)
        require(q.shape[0] == total, f"q has {q.shape[0]} rows, qo_indptr[-1] is {total}")
        keys, values = self._caches(paged_kv_cache)
        bounds = arrays["paged_kv_indptr"].tolist()
        rows_of = q.split([rows for rows, _ in lengths])
        results = []
        for i, (rows, slots) in enumerate(lengths):
            pages = arrays["paged_kv_indices"][bounds[i] : bounds[i + 1]].long()
            require(
                int(pages.min()) >= 0 and int(pages.max()) < keys.shape[0],
                f"pages {pages.tolist()} of a cache of {keys.shape[0]}",
            )
            k, v = (cache[pages].flatten(0, 1)[:slots] for cache in (keys, values))
            results.append(attend(rows_of[i], k, v, self._mask(i, rows, slots), plan.sm_scale))
        result = torch.cat([o for o, _ in results]).to(plan.dtypes[2])
        sums = torch.cat([s for _, s in results]) / (math.log(2) if lse_base == "log2" else 1)
        result = _into("out", out, result)
        if not return_lse:
            return result
        return result, _into("lse", lse, sums if lse_layout == "NH" else sums.T.contiguous())

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def _set_workspace(self, buffer):
        require(isinstance(buffer, Tensor), "float_workspace_buffer must be a tensor")
        require(buffer.data_ptr() % 16 == 0, "float_workspace_buffer must be 16-byte aligned")
        self._device = buffer.device

    def _check_buffers(self):
        arrays = self._arrays
        masked = ("custom_mask", "mask_indptr")
        missing = [n for n in arrays if arrays[n] is None and n not in masked]
        require(not missing, f"cuda graph mode needs the buffers {missing}")
        require(
            (arrays["custom_mask"] is None) == (arrays["mask_indptr"] is None),
            "custom_mask_buf and mask_indptr_buf go together",
        )
        batch = arrays["qo_indptr"].numel() - 1
        sizes = {"paged_kv_last_page_len": batch, "paged_kv_indices": None, "custom_mask": None}
        for name, buffer in arrays.items():
            if buffer is not None:
                dtype = torch.uint8 if name == "custom_mask" else torch.int32
                require_array(f"{name}_buf", buffer, dtype, sizes.get(name, batch + 1))
                require(buffer.device == self._device, f"{name}_buf is on {buffer.device}")

    def _pack(self, lengths, custom_mask, packed):
        """The mask arrays to keep; none without a mask (a graph wrapper's buffers stay as is)."""
        if custom_mask is None and packed is None:
            return {}
        if self._graph:
            require(
                self._arrays["custom_mask"] is not None,
                "custom_mask_buf and mask_indptr_buf must be given for a mask in cuda graph mode",
            )
        bits = torch.tensor([0] + [rows * slots for rows, slots in lengths])
        if packed is None:
            require_array("custom_mask", custom_mask, torch.bool, int(bits.sum()))
            indptr = bits.cumsum(0).to(custom_mask.device)
            packed, _ = segment_packbits(custom_mask, indptr, bitorder="little")
        mask_indptr = packed_size(bits).cumsum(0).int()
        require_array("packed_custom_mask", packed, torch.uint8, int(mask_indptr[-1]))
        return {"custom_mask": packed, "mask_indptr": mask_indptr}

    def _keep(self, arrays, total):
        """plan()'s arrays, as copies or, all of them checked first, in the graph's buffers."""
        if not self._graph:
            fresh = {n: a.to(self._device, copy=True) for n, a in arrays.items()}
            self._arrays = dict.fromkeys(self._arrays) | fresh
            return
        fixed = self._arrays["qo_indptr"].numel() - 1
        batch = arrays["qo_indptr"].numel() - 1
        require(batch == fixed, f"batch size {batch}: fixed at {fixed} in cuda graph mode")
        capacity = total if self._capacity is None else self._capacity
        require(total <= capacity, f"{total} query rows, the capacity is {capacity}")
        for name, array in arrays.items():
            size, room = array.numel(), self._arrays[name].numel()
            require(size <= room, f"{name} has {size} elements, its buffer {room}")
        self._capacity = capacity
        for name, array in arrays.items():
            self._arrays[name][: array.numel()].copy_(array)

    def _caches(self, paged):
        """k and v as [pages, page_size, kv_heads, d]."""
        plan = self._plan
        if isinstance(paged, Tensor):
            require(paged.dim() == 5 and paged.shape[1] == 2, f"cache {tuple(paged.shape)}")
            paged = paged.unbind(1)
        require(isinstance(paged, tuple) and len(paged) == 2, "the cache must be (k, v) or 5-D")
        require(paged[0].shape[0] == paged[1].shape[0], "k and v differ in pages")
        axes = (plan.page_size, plan.kv_heads)
        axes = axes if self._layout == "NHD" else axes[::-1]
        for cache, size in zip(paged, (plan.head_dim, plan.head_dim_vo), strict=True):
            require(
                cache.dim() == 4 and cache.shape[1:] == (*axes, size),
                f"cache {tuple(cache.shape)}, planned [pages, {axes}, {size}]",
            )
            require(cache.dtype == plan.dtypes[1], f"cache {cache.dtype}, not {plan.dtypes[1]}")
            require(cache.device == self._device, f"cache on {cache.device}, not {self._device}")
            require(cache.stride(-1) == 1, "the cache's last dimension must be contiguous")
        return paged if self._layout == "NHD" else tuple(c.transpose(1, 2) for c in paged)

    def _mask(self, request, rows, slots):
        packed = self._arrays["custom_mask"]
        if packed is None:
            if self._plan.causal:
                return causal_mask(rows, slots, self._device)
            return torch.ones(rows, slots, dtype=torch.bool, device=self._device)
        starts = [*self._arrays["mask_indptr"].tolist()[:-1], packed.numel()]
        start, end = starts[request], starts[request] + packed_size(rows * slots)
        require(
            start >= 0 and end <= min(packed.numel(), starts[request + 1]),
            f"mask bytes {start} to {end} of request {request} run past {starts[request + 1]}",
        )
        return unpack(packed[start:end], rows, slots)


def _into(name, target, value):
    """value, copied into the caller's tensor if there is one."""
    if target is None:
        return value
    require(
        target.shape == value.shape and target.dtype == value.dtype,
        f"{name} must be {tuple(value.shape)} {value.dtype}",
    )
    return target.copy_(value)


def modules():
    """Name to module, for `monkeypatch.setitem(sys.modules, ...)`: `import flashinfer` and its
    `prefill` and `quantization` then give this double, also to importlib.util.find_spec."""
    exported = {
        "BatchPrefillWithPagedKVCacheWrapper": BatchPrefillWithPagedKVCacheWrapper,
        "single_prefill_with_kv_cache": single_prefill_with_kv_cache,
        "packbits": packbits,
        "segment_packbits": segment_packbits,
    }
    made = {}
    for name in ("flashinfer", "flashinfer.prefill", "flashinfer.quantization"):
        made[name] = types.ModuleType(name)
        made[name].__spec__ = importlib.machinery.ModuleSpec(name, None, is_package="." not in name)
        vars(made[name]).update(exported)
    root = made["flashinfer"]
    root.__version__, root.__path__ = __version__, []
    root.prefill, root.quantization = made["flashinfer.prefill"], made["flashinfer.quantization"]
    return made
