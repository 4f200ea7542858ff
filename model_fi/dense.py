"""Dense layers laid out for the processor that runs them.

Parameters keep their names and values; only where their numbers lie in memory changes, and all of
it happens after loading. Several layers with one input become one product. On a CPU in fp32, at
batch 1, the matrix library decides the speed of a pass: it streams a matrix fastest along its
longer side for one token, and from oneDNN's own blocked layout for several (measured: 1.4 times
for one token, 1.7 times for eight, against `F.linear` on the matrix as loaded).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PACK_LIMIT = 4 << 30  # bytes of weights up to which a CPU model keeps the second, blocked copy
_PACK_ROWS = 16  # tokens per pass the blocked layout is made for; any number may follow


class Dense:
    """One matrix product with optional bias: `[t, in]` -> `[t, out]`.

    Args:
        weight: `[out, in]`, any strides; kept, not copied.
        bias: `[out]` or None.
        pack: also keep a blocked copy for passes of several tokens (see `can_pack`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, pack: bool) -> None:
        self.weight, self.bias = weight, bias
        self.packed: Tensor | None = None
        if pack:
            contiguous = weight.detach().contiguous()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(contiguous, _PACK_ROWS)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the layer, and add `residual` `[t, out]` if there is one."""
        if self.packed is not None and x.shape[0] > 1:
            if residual is None:
                return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return torch.ops.mkldnn._linear_pointwise(x, residual, self.packed, self.bias, "add")
        if residual is None:
            return F.linear(x, self.weight, self.bias)
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addmm(residual, x, self.weight.t())


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can block this matrix (the operators are the ones torch.compile uses)."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def is_plain(layers: Sequence[nn.Module]) -> bool:
    """Whether these are dense layers whose weights are ours to lay out (not a quantiser's)."""
    if any(type(layer) is not nn.Linear for layer in layers):
        return False
    weights = [layer.weight for layer in layers if isinstance(layer, nn.Linear)]
    same = {(w.dtype, w.device, w.shape[1]) for w in weights}
    return len(same) == 1 and all(type(w) is nn.Parameter for w in weights)


class Modules:
    """Layers that are not ours to lay out (quantised ones), called as they are, side by side."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = tuple(layers)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """As `Dense`."""
        outputs = [layer(x) for layer in self.layers]
        out = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
        return out if residual is None else residual + out


Projection = Dense | Modules


def lay_out(layers: Sequence[nn.Module], pack: bool) -> Projection:
    """Make layers with one input one product.

    Plain dense layers become views of one matrix, laid out for their device; `pack` allows the
    second copy (see `Dense`). Others are left alone.
    """
    if not is_plain(layers):
        return Modules(layers)
    return _dense([layer for layer in layers if isinstance(layer, nn.Linear)], pack)


def _dense(layers: Sequence[nn.Linear], pack: bool) -> Dense:
    weight = torch.cat([layer.weight.detach() for layer in layers])
    if weight.device.type == "cpu" and weight.shape[0] > weight.shape[1]:
        weight = weight.t().contiguous().t()  # the longer side contiguous
    bias = None
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias.detach() for layer in layers])
    sizes = [layer.out_features for layer in layers]
    for index, layer in enumerate(layers):
        layer.weight.data = weight.split(sizes)[index]
        if bias is not None:
            layer.bias.data = bias.split(sizes)[index]
    return Dense(weight, bias, pack and can_pack(weight))
