"""The speculative step, phase by phase, on models of given shapes with random weights.

    python -m experiments.bench_step --preset tiny|7b-68m|8b-1b --device cpu|cuda

Nothing is downloaded. Printed for every tree and context: medians of the phases and of the whole
step (captured where that is possible, else eager), kernels launched and host synchronisations
(counted by tracing every torch call; on a CPU, for the form a GPU runs), bytes per second of the
target pass next to the ceiling measured by a large copy, the target pass in units of reading its
weights once, and tokens per second at a typical acceptance vector. The last line is JSON; its
top-level figures are those of the last case with about 64 nodes.
"""

from __future__ import annotations

import json
import time
from typing import Any

import click
import torch

from experiments.random_pair import random_pair
from experiments.step_cases import ACCEPTANCE, PRESETS, Bench, Case, copy_ceiling
from sequoia.profiling.clock import Clock
from sequoia.provenance import collect, device_name

COLUMNS = (
    ("tree", 9), ("context", 7), ("draft", 8), ("target", 8), ("verify", 8), ("commit", 8),
    ("step ms", 8), ("eager ms", 8), ("launches", 8), ("syncs", 5), ("GB/s", 7), ("x read", 6),
    ("tokens/s", 9),
)  # fmt: skip


@click.command(help=__doc__.partition("\n")[0])
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--verifier", default="rrs_wor", show_default=True)
@click.option("--attention", default="auto", show_default=True, help="auto, sdpa or flashinfer")
@click.option("--tree", "trees", multiple=True, help="Only these trees (best:N, or a tree spec).")
@click.option("--context", "contexts", multiple=True, type=int, help="Only these contexts.")
@click.option("--seconds", default=0.2, show_default=True, help="Measured time per phase.")
def main(
    preset: str,
    device: str,
    verifier: str,
    attention: str,
    trees: tuple[str, ...],
    contexts: tuple[int, ...],
    seconds: float,
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("--device cuda: torch finds no CUDA device here")
    chosen = PRESETS[preset]
    where = torch.device(device)
    clock = Clock(seconds=seconds, least=3, most=100)
    start = time.perf_counter()
    pair = random_pair(*chosen.configs(), getattr(torch, chosen.dtype), where)
    ceiling = copy_ceiling(where, clock)
    print(
        f"{preset} on {device_name(where)}, {chosen.dtype}; weights and ceiling took "
        f"{time.perf_counter() - start:.1f} s; a copy moves {ceiling / 1e9:.1f} GB/s"
    )
    print(" ".join(f"{name:>{width}}" for name, width in COLUMNS))
    bench = Bench(pair, attention, clock, ceiling)
    results = []
    for tree in trees or chosen.trees:
        for context in contexts or chosen.contexts:
            results.append(bench.measure(Case(tree, context, verifier)))
            print(row(results[-1]), flush=True)
    record = {
        "preset": preset,
        "attention": attention,
        "copy_bytes_per_second": ceiling,
        "acceptance": list(ACCEPTANCE),
        **headline(results),
        "cases": results,
        "seconds": round(time.perf_counter() - start, 1),
        **collect(device=device_name(where), dtype=chosen.dtype),
    }
    print(json.dumps(record))


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    times = result["captured_ms"] or result["eager_ms"]
    cells = [
        result["tree"],
        result["context"],
        *(f"{times[name]:.3f}" for name in ("draft", "target", "verify", "commit", "step")),
        f"{result['eager_ms']['step']:.3f}",
        result["launches_per_step"],
        result["host_syncs_per_step"],
        f"{result['target_bytes_per_second'] / 1e9:.1f}",
        f"{result['ratios']['target_pass_to_one_read_of_weights']:.2f}",
        f"{result['tokens_per_second']:.1f}",
    ]
    return " ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))


def headline(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the case nearest to 64 nodes, the last context of those."""
    nearest = min(abs(result["nodes"] - 64) for result in results)
    chosen = [result for result in results if abs(result["nodes"] - 64) == nearest][-1]
    return {
        "headline": {name: chosen[name] for name in ("tree", "context", "bucket", "verifier")},
        "host_syncs_per_step": chosen["host_syncs_per_step"],
        "launches_per_step": chosen["launches_per_step"],
        "phases": chosen["captured_ms"] or chosen["eager_ms"],
        "ratios": chosen["ratios"],
    }


if __name__ == "__main__":
    main()
