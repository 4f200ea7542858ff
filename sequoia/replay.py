"""How a step is run: eagerly, or captured once as a CUDA graph and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

BUCKET = 64  # cache lengths are rounded up to this: attention reads the used part, shapes repeat


class Steppable(Protocol):
    """A step of constant shapes on static buffers (``sequoia.step.Step``)."""

    made: Any  # the tensors the last run left for an observer, or None

    @property
    def n(self) -> Tensor: ...

    def run(self, bucket: int) -> None: ...


class Replay(Protocol):
    """Runs steps. ``key`` names all that the kernels of a run depend on, the bucket left out."""

    description: str

    def bucket(self, needed: int) -> int:
        """The cache length to run with when ``needed`` slots are in use."""
        ...

    def run(self, key: Hashable, step: Steppable, bucket: int) -> None: ...


class EagerReplay:
    """Run the step as it is. ``reason`` says why it is not captured."""

    def __init__(self, reason: str) -> None:
        self.description = f"eager ({reason})"

    def bucket(self, needed: int) -> int:
        return -(-needed // BUCKET) * BUCKET

    def run(self, key: Hashable, step: Steppable, bucket: int) -> None:
        step.run(bucket)


class GraphReplay:
    """Capture the whole step as one CUDA graph per (key, bucket) that comes twice; replay it.

    The first run of each is eager: the small trees at the end of a text would cost more to
    capture than they save. A warm-up on a side stream precedes a capture (libraries make handles
    and workspaces, kernels are compiled: none of that may happen in a capture). It is a real
    step: it writes only to slots and tokens from ``n - 1`` on, which the next run overwrites, so
    putting ``n`` back undoes it.

    All graphs share one memory pool, so they take the memory of the largest and not of all
    together. That is sound because only one runs at a time and none reads what another left in
    the pool: whatever lasts from step to step lies in buffers allocated outside. Warm-ups and
    captures use one stream, as the allocator can share blocks only within a stream.

    No random number is drawn in a step, so no generator is captured.

    A step that cannot be captured (a quantiser's kernels that wait for the host, say) is run
    eagerly from then on, with one warning that says why.
    """

    def __init__(self) -> None:
        self.description = (
            "captured: draft levels, target pass, verification and compaction are one CUDA graph, "
            "made for each cache bucket when it is reached"
        )
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._refused = False

    def bucket(self, needed: int) -> int:
        """At most a quarter is read in vain, and a long text takes few graphs: four an octave."""
        grain = max(BUCKET, 1 << max(needed - 1, 0).bit_length() >> 3)
        return -(-needed // grain) * grain

    def run(self, key: Hashable, step: Steppable, bucket: int) -> None:
        full_key = (key, bucket)
        if self._refused or full_key not in self._seen:
            self._seen.add(full_key)
            step.run(bucket)
            return
        if full_key not in self._graphs:
            stream = torch.cuda.current_stream()
            try:
                self._graphs[full_key] = self._capture(step, bucket)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                torch.cuda.set_stream(stream)  # a refused capture does not put it back
                self._go_on_eagerly(error)
                step.run(bucket)
                return
        graph, step.made = self._graphs[full_key]
        graph.replay()

    def _go_on_eagerly(self, error: RuntimeError) -> None:
        """A refused capture has run nothing, so the step can still be run."""
        while isinstance(error.__context__, RuntimeError):  # ending a broken capture fails again
            error = error.__context__
        reason = f"the step cannot be captured: {str(error).strip().splitlines()[0]}"
        self._refused, self.description = True, f"eager ({reason})"
        self._graphs.clear()
        warnings.warn(f"no CUDA graphs: {reason}; going on eagerly", stacklevel=2)

    def _capture(self, step: Steppable, bucket: int) -> tuple[torch.cuda.CUDAGraph, Any]:
        n = step.n.clone()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step.run(bucket)
            step.n.copy_(n)
        torch.cuda.current_stream().wait_stream(self._stream)
        step.made = None  # what an earlier capture left must not be held while memory is planned
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            step.run(bucket)
        return graph, step.made


def choose_replay(models: list[Any], graphs: bool = True) -> Replay:
    """Graphs where they can be captured; else eager, with the reason on one line."""
    if not graphs:
        return EagerReplay("graphs switched off")
    devices = {parameter.device for model in models for parameter in model.parameters()}
    if any(device.type != "cuda" for device in devices):
        kinds = ", ".join(sorted({device.type for device in devices}))
        return EagerReplay(f"CUDA graphs need a CUDA device, the models are on {kinds}")
    if len(devices) > 1:
        return EagerReplay("the models are spread over several devices")
    reason = _hooked(module for model in models for module in model.modules())
    return EagerReplay(reason) if reason else GraphReplay()


def _hooked(modules: Iterable[nn.Module]) -> str:
    """Why these modules must run in Python at every pass, or nothing."""
    for module in modules:
        if hasattr(module, "_hf_hook"):
            return "accelerate's hooks move weights during the pass"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a forward hook on {type(module).__name__} would run at the capture only"
        if any(hasattr(p, "device_mesh") for p in module.parameters(recurse=False)):
            return "the weights are sharded over several processes"
    return ""
