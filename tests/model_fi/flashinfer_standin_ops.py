"""What the FlashInfer double is made of: checks, bit packing, attention over one request."""

import itertools
import math

import torch
from torch import Tensor


def require(condition, message):
    if not condition:
        raise ValueError(message)


def require_array(name, array, dtype, size=None):
    """A contiguous 1-D tensor of one dtype, and of one size if given."""
    require(isinstance(array, Tensor), f"{name} must be a tensor, got {type(array).__name__}")
    require(array.dtype == dtype, f"{name} must be {dtype}, got {array.dtype}")
    require(array.dim() == 1, f"{name} must be 1-D, got shape {tuple(array.shape)}")
    require(array.is_contiguous(), f"{name} must be contiguous")
    require(
        size is None or array.numel() == size, f"{name} must have {size} elements, {array.numel()}"
    )


def require_indptr(name, indptr):
    values = indptr.tolist()
    require(len(values) >= 2 and values[0] == 0, f"{name} must start with 0, got {values}")
    require(values == sorted(values), f"{name} must not decrease, got {values}")


def as_dtype(value):
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    require(isinstance(dtype, torch.dtype), f"not a dtype: {value!r}")
    return dtype


def packed_size(bits):
    return (bits + 7) // 8


def packbits(x: Tensor, bitorder: str = "big") -> Tensor:
    """Bits [n] bool to [ceil(n / 8)] uint8, as numpy.packbits; the last byte is filled with 0."""
    require_array("x", x, torch.bool)
    require(bitorder in ("big", "little"), f"bitorder must be big or little, got {bitorder!r}")
    padded = x.new_zeros(packed_size(x.numel()) * 8)
    padded[: x.numel()] = x
    shifts = torch.arange(8, device=x.device)
    weights = 1 << (shifts if bitorder == "little" else 7 - shifts)
    return (padded.view(-1, 8) * weights).sum(-1).to(torch.uint8)


def segment_packbits(x: Tensor, indptr: Tensor, bitorder: str = "big") -> tuple[Tensor, Tensor]:
    """Each segment x[indptr[i]:indptr[i+1]] packed into whole bytes; the bytes and their indptr."""
    integer = indptr.dtype if indptr.dtype in (torch.int32, torch.int64) else torch.int32
    require_array("indptr", indptr, integer)
    require_indptr("indptr", indptr)
    bounds = indptr.tolist()
    require_array("x", x, torch.bool, bounds[-1])
    parts = [packbits(x[start:end], bitorder) for start, end in itertools.pairwise(bounds)]
    sizes = [0] + [part.numel() for part in parts]
    return torch.cat(parts), torch.tensor(sizes, device=indptr.device).cumsum(0).to(indptr.dtype)


def unpack(packed, rows, columns):
    """Little-endian bytes to the mask [rows, columns]; bit of (r, c) is r * columns + c."""
    bits = (packed[:, None] >> torch.arange(8, device=packed.device)) & 1
    return bits.view(-1)[: rows * columns].view(rows, columns).bool()


def causal_mask(rows, columns, device):
    """The last row sees every slot: bottom-right aligned."""
    full = torch.ones(rows, columns, dtype=torch.bool, device=device)
    return full.tril(columns - rows)


def attend(q, k, v, mask, sm_scale):
    """q [n, heads, d], k and v [slots, kv_heads, d], mask [n, slots] -> fp32 out, lse (base e)."""
    rows, heads, size = q.shape
    kv_heads = k.shape[1]
    grouped = q.float().reshape(rows, kv_heads, heads // kv_heads, size)
    scores = torch.einsum("nhgd,shd->nhgs", grouped, k.float()) * sm_scale
    scores = scores.masked_fill(~mask[:, None, None, :], -math.inf)
    lse = scores.logsumexp(-1)
    seen = mask.any(-1)[:, None, None, None]
    weights = torch.where(seen, scores - lse[..., None], -math.inf).exp()
    out = torch.einsum("nhgs,shd->nhgd", weights, v.float())
    return out.reshape(rows, heads, v.shape[-1]), lse.reshape(rows, heads)


def require_rows(q, heads, head_dim, dtype, device):
    require(isinstance(q, Tensor) and q.dim() == 3, "q must be [nnz, heads, head_dim]")
    require(q.shape[1:] == (heads, head_dim), f"q {tuple(q.shape)}, planned {heads}, {head_dim}")
    require(q.dtype == dtype, f"q is {q.dtype}, planned {dtype}")
    require(q.device == device, f"q is on {q.device}, the workspace on {device}")
    require(q.stride(-1) == 1, "q's last dimension must be contiguous")


def single_prefill_with_kv_cache(
    q: Tensor, k: Tensor, v: Tensor, *, o_dtype=None, custom_mask=None, packed_custom_mask=None,
    causal=False, kv_layout="NHD", sm_scale=None, backend="auto", return_lse=False,
):  # fmt: skip
    """One request without pages: q [n, heads, d], k and v [slots, kv_heads, d] (HND: first two
    swapped) -> [n, heads, d] in o_dtype (q's), and the lse [n, heads] in base 2 if asked for.

    custom_mask is bool [n, slots], packed_custom_mask its little-endian bytes; either overrides
    causal. Raises ValueError for anything of another shape, dtype or device.
    """
    require(kv_layout in ("NHD", "HND"), f"kv_layout must be NHD or HND, got {kv_layout!r}")
    require(backend in ("auto", "fa2"), f"backend {backend!r} is not modelled")
    require(k.dim() == 3 and k.shape == v.shape, f"k {tuple(k.shape)}, v {tuple(v.shape)}")
    require(k.dtype == v.dtype and k.device == v.device, "k and v differ in dtype or device")
    require(isinstance(q, Tensor) and q.dim() == 3, "q must be [n, heads, head_dim]")
    keys, values = (k, v) if kv_layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
    rows, slots = q.shape[0], keys.shape[0]
    require_rows(q, q.shape[1], keys.shape[2], k.dtype, k.device)
    require(q.shape[1] % keys.shape[1] == 0, f"{q.shape[1]} heads over {keys.shape[1]} kv heads")
    mask = causal_mask(rows, slots, q.device) if causal else q.new_ones(rows, slots).bool()
    if packed_custom_mask is not None:
        size = packed_size(rows * slots)
        require_array("packed_custom_mask", packed_custom_mask, torch.uint8, size)
        mask = unpack(packed_custom_mask, rows, slots)
    elif custom_mask is not None:
        require(custom_mask.dtype == torch.bool, f"custom_mask is {custom_mask.dtype}, not bool")
        require(custom_mask.shape == (rows, slots), f"custom_mask {tuple(custom_mask.shape)}")
        mask = custom_mask
    scale = 1 / math.sqrt(q.shape[2]) if sm_scale is None else sm_scale
    out, lse = attend(q, keys, values, mask, scale)
    out = out.to(q.dtype if o_dtype is None else o_dtype)
    return (out, lse / math.log(2)) if return_lse else out


def request_lengths(arrays, page_size):
    """(q_len, kv_len) of every request, from index arrays that must agree with each other."""
    qo, kv = arrays["qo_indptr"], arrays["paged_kv_indptr"]
    require_indptr("qo_indptr", qo)
    require_indptr("paged_kv_indptr", kv)
    last = arrays["paged_kv_last_page_len"].tolist()
    require(
        qo.numel() == kv.numel() == len(last) + 1,
        f"sizes {qo.numel()}, {kv.numel()} of the indptrs, {len(last)} last pages",
    )
    pages = kv.diff().tolist()
    require(min(pages) >= 1, f"every request needs a page, got {pages}")
    require(all(1 <= n <= page_size for n in last), f"last pages {last}, page size {page_size}")
    room = arrays["paged_kv_indices"].numel()
    require(kv[-1] <= room, f"paged_kv_indptr ends at {int(kv[-1])}, {room} page indices")
    slots = [page_size * (p - 1) + n for p, n in zip(pages, last, strict=True)]
    return list(zip(qo.diff().tolist(), slots, strict=True))
