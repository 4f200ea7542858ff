"""Run a generation, showing its text as it comes, time it from outside, and tabulate that."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequoia.config import SamplingParams
    from sequoia.decoder import SpeculativeDecoder
    from sequoia.outputs import GenerationOutput


@dataclass(frozen=True)
class Timed:
    """A generation and its wall-clock times, prompt included, in seconds."""

    output: GenerationOutput
    seconds: float
    first_step_seconds: float  # until the first tokens were there: the prompt and one step

    @property
    def num_tokens(self) -> int:
        return len(self.output.token_ids)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def timed(
    decoder: SpeculativeDecoder,
    ids: Sequence[int],
    params: SamplingParams,
    show: Callable[[str], None] | None = None,
) -> Timed:
    """Generate to the end or to an interrupt; ``show`` gets each new piece of the text."""
    run = decoder.start(list(ids), params)
    shown = 0
    start = time.perf_counter()
    first = 0.0

    def emit(text: str) -> None:
        nonlocal shown
        if show is not None and len(text) > shown:
            piece, shown = text[shown:], len(text)
            show(piece)

    try:
        for _ in run:
            first = first or time.perf_counter() - start
            if show is not None:
                emit(run.text())
    except KeyboardInterrupt:
        run.interrupt()
    seconds = time.perf_counter() - start
    output = run.output()
    emit(output.text)
    return Timed(output, seconds, first)


def baseline_params(params: SamplingParams, run: Timed) -> SamplingParams:
    """What plain decoding is asked for in a comparison: exactly as many tokens as the run had."""
    return dataclasses.replace(
        params,
        max_new_tokens=run.num_tokens,
        seed=run.output.seed,
        stop_token_ids=(),
        stop=(),
    )


def numbers(run: Timed, baseline: Timed | None, greedy: bool) -> dict[str, Any]:
    """The figures of a run, JSON-ready; with a baseline also the speed-up over it."""
    output = run.output
    figures: dict[str, Any] = {
        "prompt_tokens": output.num_prompt_tokens,
        "new_tokens": run.num_tokens,
        "steps": output.num_steps,
        "tokens_per_step": round(output.tokens_per_step, 4),
        "accepted_per_step": output.accepted_per_step,
        "seconds": round(run.seconds, 4),
        "first_step_seconds": round(run.first_step_seconds, 4),
        "tokens_per_second": round(run.tokens_per_second, 3),
        "finish_reason": output.finish_reason,
    }
    if baseline is not None:
        speedup = run.tokens_per_second / baseline.tokens_per_second
        figures["autoregressive_seconds"] = round(baseline.seconds, 4)
        figures["autoregressive_tokens_per_second"] = round(baseline.tokens_per_second, 3)
        figures["speedup_vs_autoregressive"] = round(speedup, 4)
        if greedy:
            figures["same_as_autoregressive"] = output.token_ids == baseline.output.token_ids
    return figures


def table(figures: dict[str, Any], facts: Sequence[tuple[str, str]]) -> str:
    """The figures of :func:`numbers` side by side with the baseline's, then facts in words."""
    compared = "speedup_vs_autoregressive" in figures
    rows: list[tuple[str, str, str]] = [
        ("new tokens", f"{figures['new_tokens']}", f"{figures['new_tokens']}"),
        ("steps (target passes)", f"{figures['steps']}", f"{figures['new_tokens']}"),
        ("tokens per step", f"{figures['tokens_per_step']:.2f}", "1.00"),
        ("seconds", f"{figures['seconds']:.2f}", _two(figures.get("autoregressive_seconds"))),
        (
            "tokens/s",
            f"{figures['tokens_per_second']:.1f}",
            _one(figures.get("autoregressive_tokens_per_second")),
        ),
    ]
    if compared:
        rows.insert(0, ("", "this run", "autoregressive"))
        rows.append(("speed-up", f"{figures['speedup_vs_autoregressive']:.2f}x", "1.00x"))
    name_width = max(len(name) for name, *_ in [*rows, *((name, "") for name, _ in facts)])
    lines = [
        f"{name:<{name_width}}  {left:>10}" + (f"  {right:>14}" if compared else "")
        for name, left, right in rows
    ]
    lines += [f"{name:<{name_width}}  {value}" for name, value in facts]
    return "\n".join(lines)


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
