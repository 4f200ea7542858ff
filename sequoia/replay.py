"""How a step is run: eagerly, or captured once as a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch import Tensor


class Steppable(Protocol):
    """A step of constant shapes on static buffers (``sequoia.step.Step``)."""

    made: Any  # the tensors the last run left, for observers

    @property
    def n(self) -> Tensor: ...

    def run(self, bucket: int) -> None: ...


class Replay(Protocol):
    """Runs steps. ``key`` names all that the kernels of a run depend on, the bucket left out."""

    description: str

    def run(self, key: Hashable, step: Steppable, bucket: int) -> None: ...


class EagerReplay:
    """Run the step as it is. ``reason`` says why it is not captured."""

    def __init__(self, reason: str) -> None:
        self.description = f"eager ({reason})"

    def run(self, key: Hashable, step: Steppable, bucket: int) -> None:
        step.run(bucket)


class GraphReplay:
    """Capture the whole step as one CUDA graph per (key, bucket), lazily; then replay it.

    All graphs share one memory pool, since only one runs at a time. A warm-up run on a side
    stream is a real step: it writes only to slots and tokens from ``n - 1`` on, which the next
    run overwrites, so putting ``n`` back undoes it.
    """

    WARM_UPS = 2

    def __init__(self) -> None:
        self.description = "captured (draft levels, target pass, verification, compaction: 1 graph)"
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def run(self, key: Hashable, step: Steppable, bucket: int) -> None:
        full_key = (key, bucket)
        if full_key not in self._graphs:
            self._graphs[full_key] = self._capture(step, bucket)
        graph, step.made = self._graphs[full_key]
        graph.replay()

    def _capture(self, step: Steppable, bucket: int) -> tuple[torch.cuda.CUDAGraph, Any]:
        n = step.n.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UPS):
                step.run(bucket)
                step.n.copy_(n)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
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
    if any(hasattr(module, "_hf_hook") for model in models for module in model.modules()):
        return EagerReplay("accelerate's hooks move weights during the pass")
    return GraphReplay()
