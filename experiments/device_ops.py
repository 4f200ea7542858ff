"""What a step does to a device, op by op: kernels launched, values read, data copied from the host.

Works on any device. On ``meta`` it shows what a CUDA run would do, without one: the step takes the
same branches there, and a read of a value or a tensor in host memory stands out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

READS = {  # ops that make the host wait for a value, or for a shape that depends on values
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.masked_select.default,
    aten._unique2.default,
}
NO_KERNEL = {aten.lift_fresh.default, aten.detach.default, aten._local_scalar_dense.default}
FUSED = {"aten::_fused_rms_norm", "aten::scaled_dot_product_attention"}  # one kernel on CUDA
FROM_HOST = {  # these copy Python values to the device, which no dispatch mode sees on meta
    torch.tensor,
    torch.as_tensor,
    torch.asarray,
    torch.from_numpy,
    Tensor.new_tensor,
}


class HostAccess(AssertionError):
    """Something that cannot be captured in a CUDA graph, at the line that did it."""


class DeviceOps:
    """Counts of one traced region. ``launches``: op -> calls that run a kernel (about one each)."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.reads: list[str] = []  # the host waited for the device
        self.copies: list[str] = []  # data came from host memory

    @property
    def num_launches(self) -> int:
        return sum(self.launches.values())


@contextmanager
def traced(device: torch.device | str, strict: bool = False) -> Iterator[DeviceOps]:
    """Trace all torch calls of the ``with`` block.

    ``strict``: raise :class:`HostAccess` at the first host read, host copy, or tensor on another
    device than ``device``.
    """
    ops = DeviceOps()
    with _Calls(ops, strict), _Ops(ops, torch.device(device), strict):
        yield ops


class _Ops(TorchDispatchMode):
    def __init__(self, ops: DeviceOps, device: torch.device, strict: bool) -> None:
        super().__init__()
        self.ops, self.device, self.strict = ops, device, strict

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # inference mode hands these over whole: look inside
            with self:
                return func.decompose(*args, **kwargs)
        name = str(func)
        foreign = self._foreign((args, kwargs))
        if func in READS or _masked_index(func, args) or self._fetches(func, kwargs):
            self._note(self.ops.reads, f"{name} reads a value on the host")
        elif foreign:
            self._note(self.ops.copies, f"{name} takes a tensor on {foreign}")
        out = func(*args, **kwargs)
        elsewhere = self._foreign(out)
        if elsewhere and not foreign and not self._fetches(func, kwargs):
            self._note(self.ops.copies, f"{name} makes a tensor on {elsewhere}")
        if not _is_view(func) and "empty" not in name and func not in NO_KERNEL:
            self.ops.launches[name] += 1
        return out

    def _foreign(self, values: Any) -> str:
        """The first other device among the tensors in ``values``, or nothing."""
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor) and leaf.device.type != self.device.type:
                return str(leaf.device)
        return ""

    def _fetches(self, func: Any, kwargs: dict[str, Any]) -> bool:
        """Whether this copies to host memory, and so waits for the device."""
        to = kwargs.get("device") if func is aten._to_copy.default else None
        return to is not None and torch.device(to).type == "cpu" != self.device.type

    def _note(self, notes: list[str], text: str) -> None:
        notes.append(text)
        if self.strict:
            raise HostAccess(text)


class _Calls(TorchFunctionMode):
    """Python values made into tensors, and lists used as an index: copies from the host."""

    def __init__(self, ops: DeviceOps, strict: bool) -> None:
        super().__init__()
        self.ops, self.strict = ops, strict

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        listed = func in (Tensor.__getitem__, Tensor.__setitem__) and _has_list(args[1])
        if func in FROM_HOST or listed:
            text = f"{getattr(func, '__name__', func)} copies from the host"
            self.ops.copies.append(text)
            if self.strict:
                raise HostAccess(text)
        return func(*args, **(kwargs or {}))


def _has_list(index: Any) -> bool:
    return any(isinstance(i, list) for i in (index if isinstance(index, tuple) else (index,)))


def _masked_index(func: Any, args: Any) -> bool:
    """Indexing with booleans: the shape of the result is data."""
    indexing = func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
    return indexing and any(i is not None and i.dtype == torch.bool for i in args[1])


@cache
def _is_composite(func: Any) -> bool:
    if func._schema.name in FUSED:
        return False
    return func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd)


@cache
def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
