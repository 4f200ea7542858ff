"""Times of repeated calls, measured as the engine runs them: eagerly, or captured on CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch


class Timing(NamedTuple):
    """Milliseconds over the repetitions."""

    median_ms: float
    spread_ms: float  # interquartile range


@dataclass(frozen=True)
class Clock:
    """How long to measure: at least ``least`` calls, then until ``seconds`` or ``most`` calls."""

    seconds: float = 0.3
    least: int = 3
    most: int = 30

    def __call__(
        self,
        call: Callable[[], Any],
        device: torch.device,
        capture: bool = False,
        before: Callable[[], Any] = lambda: None,
    ) -> Timing:
        """Time ``call`` after a warm-up; ``before`` is run before each call and not timed.

        ``capture``: record the call as a CUDA graph and time its replays, launch costs being
        what a captured step does not pay. The call must then be graph-safe.
        """
        before()
        call()  # warm-up
        run = _captured(call, before) if capture else call
        times: list[float] = []
        while len(times) < self.least or (sum(times) < self.seconds and len(times) < self.most):
            before()
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            times.append(time.perf_counter() - start)
        low, median, high = np.percentile(np.array(times) * 1000, [25, 50, 75])
        return Timing(float(median), float(high - low))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _captured(call: Callable[[], Any], before: Callable[[], Any]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        before()
        call()
    torch.cuda.current_stream().wait_stream(side)
    before()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
