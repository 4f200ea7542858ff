"""The tree search of Sequoia's `tree_search.py --config X.json`: same file, same answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tree_builder.acceptance import AcceptanceTable
from tree_builder.search import best_trees_by_levels
from tree_builder.storage import FilePath, read_json
from tree_builder.topology import TreeTopology

KEYS = (
    "acceptance_rate_vector",
    "max_depth",
    "max_budget",
    "draft_time",
    "valid_budget",
    "target_time",
)


@dataclass(frozen=True)
class SearchConfig:
    """What a configuration file says. All times in one unit (ms).

    ValueError for lists of different length, budgets below 1 or above the maximum, times that
    are not positive (`draft_time` may be 0), and a depth below 1.
    """

    acceptance: AcceptanceTable
    max_levels: int
    max_budget: int
    draft_time: float
    budgets: tuple[int, ...]
    target_times: tuple[float, ...]  # of a pass over budgets[i] tokens
    destination: Path | None = None

    def __post_init__(self) -> None:
        if len(self.budgets) != len(self.target_times):
            raise ValueError(
                f"valid_budget has {len(self.budgets)} entries, target_time "
                f"{len(self.target_times)}: they must be as many"
            )
        if not self.budgets:
            raise ValueError("valid_budget is empty")
        if self.max_levels < 1 or self.max_budget < 1:
            raise ValueError(
                f"max_depth {self.max_levels} and max_budget {self.max_budget} must be at least 1"
            )
        for budget, time in zip(self.budgets, self.target_times, strict=True):
            if not 1 <= budget <= self.max_budget:
                raise ValueError(f"valid_budget {budget}: must be in 1..{self.max_budget}")
            if not 0 < time < float("inf"):
                raise ValueError(f"target_time of budget {budget}: must be positive, got {time}")
        if not 0 <= self.draft_time < float("inf"):
            raise ValueError(f"draft_time must not be negative, got {self.draft_time}")

    @classmethod
    def load(cls, path: FilePath) -> SearchConfig:
        """Read a configuration; file names in it are relative to the working directory or,
        failing that, to the configuration's folder. ValueError names a missing or wrong key."""
        data = read_json(path)
        missing = [key for key in KEYS if key not in data]
        if missing:
            raise ValueError(f"{path}: missing {', '.join(map(repr, missing))}")
        vector = Path(_typed(data, "acceptance_rate_vector", str))
        beside = Path(path).parent / vector
        try:
            return cls(
                acceptance=AcceptanceTable.load(vector if vector.exists() else beside),
                max_levels=_typed(data, "max_depth", int),
                max_budget=_typed(data, "max_budget", int),
                draft_time=_typed(data, "draft_time", float),
                budgets=tuple(_typed_list(data, "valid_budget", int)),
                target_times=tuple(_typed_list(data, "target_time", float)),
                destination=Path(_typed(data, "dst", str)) if "dst" in data else None,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True)
class ConfigResult:
    """The answer: a tree, and the time per token it was taken for.

    `speed_up` is over one target pass of the smallest budget per token. Below 1 plain decoding
    is faster than anything searched (a draft call is counted even for a tree of one level).
    """

    tree: TreeTopology
    budget: int
    levels: int
    expected_tokens: float
    time_per_token: float
    speed_up: float


def search_config(config: SearchConfig) -> ConfigResult:
    """Minimise (levels * draft_time + target_time) / E[tokens] over budgets and levels.

    A step makes `levels` draft calls: one per drafted level and one for the bonus. Of equally
    fast trees the one with fewer levels, then fewer nodes, is taken.
    """
    searches = best_trees_by_levels(config.acceptance, max(config.budgets), config.max_levels)
    answers = []
    for levels, trees in enumerate(searches, start=1):
        for budget, target_time in zip(config.budgets, config.target_times, strict=True):
            expected = float(trees.expected[budget])
            time = (levels * config.draft_time + target_time) / expected
            answers.append((time, levels, budget))
    time, levels, budget = min(answers)
    trees = searches[levels - 1]
    baseline = min(zip(config.budgets, config.target_times, strict=True))[1]
    return ConfigResult(
        tree=trees.tree(budget),
        budget=budget,
        levels=levels,
        expected_tokens=float(trees.expected[budget]),
        time_per_token=time,
        speed_up=baseline / time,
    )


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    return _check_type(data[key], key, kind)


def _typed_list(data: Mapping[str, Any], key: str, kind: type) -> list:
    if not isinstance(data[key], list):
        raise ValueError(f"{key!r} must be a list, got {data[key]!r}")
    return [_check_type(value, key, kind) for value in data[key]]


def _check_type(value: Any, key: str, kind: type) -> Any:
    allowed = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise ValueError(f"{key!r}: expected {kind.__name__}, got {value!r}")
    return value
