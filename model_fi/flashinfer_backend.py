"""Attention by FlashInfer's paged prefill kernels (optional, CUDA).

A layer's cache `[kv_heads, slots, head_dim]` is, as it lies, one page of `slots` rows in
FlashInfer's HND layout. The key length is the bucket, fixed: bit `row * bucket + column` of the
mask decides whether a query sees a slot, and the bits are written on the device inside the pass.
So `plan`, which works on the host, runs once per (queries, bucket), outside any capture, and `run`
can be captured. Backend `fa2`, the one that takes a mask of any shape.

The package is imported only when this backend is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from model_fi.attention import (
    Attend,
    AttentionBackend,
    AttentionShape,
    SdpaAttention,
    default_backend,
)

HEAD_DIMS = (64, 128, 256, 512)
OLDEST, TOO_NEW = (0, 7), (0, 8)  # versions whose interface this was written for
WORKSPACE = 128 * 2**20  # bytes, what FlashInfer recommends; shared by all plans
NAMES = ("auto", "sdpa", "flashinfer")

_SPREAD = 0x0102040810204080  # brings the lowest bits of 8 bytes together in the highest byte


class _Planned(NamedTuple):
    wrapper: Any
    bits: Tensor  # the wrapper's mask buffer, [ceil(t * bucket / 8)] uint8


class FlashInferAttention(AttentionBackend):
    """See the module. One object serves one runner.

    Passes of a planned size may be captured. Any other (a chunk of a prompt) is planned as it
    comes, on the host.

    Args:
        shape: of the model; constant.
        slots: of the runner's cache.
        device: of the cache.
    """

    name = "flashinfer"

    def __init__(self, shape: AttentionShape, slots: int, device: torch.device) -> None:
        self.shape, self.slots, self.device = shape, slots, device
        self._make = importlib.import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        self._unplanned = self._make(self._workspace, "HND", backend="fa2")
        self._planned: dict[tuple[int, int], _Planned] = {}

    def plan(self, t: int, bucket: int) -> None:
        """See `AttentionBackend.plan`. Each size keeps its own schedule (8 MiB)."""
        if (t, bucket) in self._planned:
            return
        bits = torch.zeros(-(-t * bucket // 8), dtype=torch.uint8, device=self.device)
        wrapper = self._make(
            self._workspace,
            "HND",
            use_cuda_graph=True,
            qo_indptr_buf=self._buffer(2),
            paged_kv_indptr_buf=self._buffer(2),
            paged_kv_indices_buf=self._buffer(1),
            paged_kv_last_page_len_buf=self._buffer(1),
            custom_mask_buf=bits,
            mask_indptr_buf=self._buffer(2),
            backend="fa2",
        )
        # A mask must be given here, for its index to be filled; its bits come with each pass.
        wrapper.plan(**self._sizes(t, bucket), packed_custom_mask=torch.zeros_like(bits))
        self._planned[t, bucket] = _Planned(wrapper, bits)

    def begin(self, mask: Tensor, shape: AttentionShape) -> Attend:
        """See `AttentionBackend.begin`.

        Raises:
            ValueError: another model, device or cache than the backend was made for.
        """
        t, bucket = mask.shape
        if shape != self.shape or mask.device != self.device or bucket > self.slots:
            raise ValueError(
                f"made for {self.shape} on {self.device} with {self.slots} slots, got {shape} on "
                f"{mask.device} with {bucket} slots"
            )
        planned = self._planned.get((t, bucket))
        if planned is None:
            wrapper = self._unplanned
            wrapper.plan(**self._sizes(t, bucket), packed_custom_mask=pack_mask(mask))
        else:
            wrapper = planned.wrapper
            planned.bits.copy_(pack_mask(mask))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._check(t, q, k, v)
            return wrapper.run(q, (k.unsqueeze(0), v.unsqueeze(0))).flatten(1)

        return attend

    def _sizes(self, t: int, bucket: int) -> dict[str, Any]:
        """Arguments of `plan`: one request of `t` queries on one page, `bucket` rows of it used."""
        if t < 1 or not 1 <= bucket <= self.slots:
            raise ValueError(f"{t} queries over {bucket} slots of a cache of {self.slots}")
        heads, kv_heads, head_dim, dtype = self.shape
        return {
            "qo_indptr": _ints(0, t),
            "paged_kv_indptr": _ints(0, 1),
            "paged_kv_indices": self._buffer(1),
            "paged_kv_last_page_len": _ints(bucket),
            "num_qo_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim_qk": head_dim,
            "page_size": self.slots,
            "q_data_type": dtype,
        }

    def _buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self.device)

    def _check(self, t: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        # The kernels check no shapes: a wrong one reads other memory.
        heads, kv_heads, head_dim, dtype = self.shape
        cache = (kv_heads, self.slots, head_dim)
        if q.shape != (t, heads, head_dim) or k.shape != cache or v.shape != cache:
            raise ValueError(
                f"expected q {[t, heads, head_dim]} and k, v {list(cache)}, got "
                f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
            )
        if {q.dtype, k.dtype, v.dtype} != {dtype}:
            raise ValueError(f"expected {dtype}, got {q.dtype}, {k.dtype}, {v.dtype}")


def pack_mask(mask: Tensor) -> Tensor:
    """`[t, S]` bool -> `[ceil(t * S / 8)]` uint8: bit `i % 8` of byte `i // 8` is entry `i`.

    Eight booleans are read as one integer; one product moves their bits into its highest byte
    (no two land on the same place, so nothing is carried).
    """
    flat = mask.reshape(-1)
    flat = F.pad(flat, (0, -flat.numel() % 8)) if flat.numel() % 8 else flat
    return (flat.view(torch.int64) * _SPREAD >> 56).to(torch.uint8)


def choose_backend(
    name: str, shape: AttentionShape, slots: int, devices: Sequence[torch.device]
) -> AttentionBackend:
    """The backend called `name` for a runner, or the device's default with one warning.

    `devices`: of each layer. `auto` is the device's default too, as FlashInfer has not yet been
    confirmed on a GPU.

    Raises:
        ValueError: not one of `NAMES`.
    """
    if name not in NAMES:
        raise ValueError(f"unknown attention {name!r}: choose from {', '.join(NAMES)}")
    default = default_backend(devices[0])
    if name in ("auto", default.name):
        return default
    if name == "sdpa":
        return SdpaAttention()
    spread = len(set(devices)) > 1
    reason = "the layers are on several devices" if spread else unusable(shape, devices[0])
    if not reason:
        return FlashInferAttention(shape, slots, devices[0])
    warnings.warn(f"attention runs on {default.name}, not FlashInfer: {reason}", stacklevel=2)
    return default


def unusable(shape: AttentionShape, device: torch.device) -> str:
    """Why FlashInfer cannot serve this model on this device, or nothing. Cheap reasons first."""
    if device.type != "cuda":
        return f"it needs a CUDA device, the model is on {device}"
    if shape.head_dim not in HEAD_DIMS:
        return f"head_dim {shape.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in float16 and bfloat16, the model is {shape.dtype}"
    capability = torch.cuda.get_device_capability(device)
    if capability < ((8, 0) if shape.dtype == torch.bfloat16 else (7, 5)):
        return f"compute capability {capability[0]}.{capability[1]} is too old for {shape.dtype}"
    if importlib.util.find_spec("flashinfer") is None:
        return "the package flashinfer-python is not installed"
    return _unusable_package()


def _unusable_package() -> str:
    if importlib.util.find_spec("flashinfer_jit_cache") is None:  # kernels compiled beforehand
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
        nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))
        missing = [name for name, path in (("nvcc", nvcc), ("ninja", _ninja())) if not path]
        if missing:
            return f"compiling its kernels needs {' and '.join(missing)}"
    try:
        version = importlib.import_module("flashinfer").__version__
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"importing it failed: {error}"
    if not OLDEST <= tuple(int(part) for part in version.split(".")[:2]) < TOO_NEW:
        return f"version {version} is not 0.7.x"
    return ""


def _ninja() -> str | None:
    return shutil.which("ninja") or ("ninja" if importlib.util.find_spec("ninja") else None)


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
