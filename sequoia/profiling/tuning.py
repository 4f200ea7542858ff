"""What a choice predicts, beside what is then measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sequoia.provenance import collect
from tree_builder.choose import Candidate, Choice


def prediction(choice: Choice) -> dict[str, Any]:
    """A choice as JSON."""

    def about(candidate: Candidate) -> dict[str, Any]:
        return {
            "name": candidate.name,
            "rule": candidate.rule,
            "parents": list(candidate.tree.parents),
            "tokens_per_step": candidate.expected_tokens,
            "step_ms": candidate.step_ms,
            "tokens_per_second": candidate.tokens_per_second,
            "speed_up": candidate.tokens_per_second / choice.baseline.tokens_per_second,
        }

    others = {"runner_up": choice.runner_up, "drafting": choice.drafting}
    return {
        **about(choice.chosen),
        "plain_step_ms": choice.baseline.step_ms,
        "context": choice.context,
        "break_even_tokens_per_step": choice.break_even,
        **{name: None if c is None else about(c) for name, c in others.items()},
    }


def side_by_side(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Prediction and measurement as a table, with the difference in per cent."""
    rows = [("", "predicted", "measured", "difference")]
    for name, key, unit in (
        ("speed-up", "speed_up", "x"),
        ("tokens per step", "tokens_per_step", ""),
        ("ms per step", "step_ms", ""),
        ("ms per plain step", "plain_step_ms", ""),
    ):
        one, two = predicted[key], measured[key]
        error = measured.get(f"{key}_error")
        spread = "" if error is None else f" ± {error:.2f}"
        off = f"{100 * (one / two - 1):+.1f} %"
        rows.append((name, f"{one:.2f}{unit}", f"{two:.2f}{unit}{spread}", off))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def about_pair(pair: Any, params: Any, **what: Any) -> dict[str, Any]:
    """Provenance of anything measured on a pair with these sampling parameters."""
    return collect(
        target=pair.target_name,
        draft=pair.draft_name,
        dtype=pair.target.compute_dtype,
        device=next(pair.target.parameters()).device,
        sampling=asdict(params),
        **what,
    )


def journal_settings(pair: Any, params: Any, **what: Any) -> dict[str, Any]:
    """All that measurements depend on, for a :class:`~sequoia.profiling.journal.Journal`."""
    about = about_pair(pair, params, **what)
    moment = ("commit", "versions", "time", "command")
    return {name: value for name, value in about.items() if name not in moment}
