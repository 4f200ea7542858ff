"""Acceptance tables: how likely the j-th child of a node with b children is accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tree_builder.storage import FilePath, read_json, read_pt, write_json

ROUNDING = 1e-3  # measured and printed probabilities sum to 1 up to this
FORMAT = "acceptance-table"

Vector = Sequence[float] | np.ndarray | Tensor  # 1-D


@dataclass(frozen=True, eq=False)
class AcceptanceTable:
    """A[b][j] = P(the j-th child in draw order is accepted | a node with b children).

    Unconditional, so a row sums to at most 1 and the rest is the chance that all are rejected.
    Where A[b][j] does not depend on b the table is one *vector*.

    rates            [D, B, B] float64, rates[d, b-1, j-1] for parents at depth d (root 0);
                     deeper parents use the last d, so D = 1 means "the same at every depth".
                     Zero for j > b. [B, B] is taken as D = 1.
    standard_errors  the same shape, or None
    provenance       anything JSON can hold: pair, rule, temperature, prompts, commit, ...

    ValueError for an empty table, a negative, NaN or infinite entry, an entry at j > b,
    or a row that sums above 1 beyond rounding.
    """

    rates: np.ndarray
    standard_errors: np.ndarray | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rates = _square(self.rates, "rates")
        object.__setattr__(self, "rates", rates)
        _check(rates)
        if self.standard_errors is not None:
            errors = _square(self.standard_errors, "standard errors")
            object.__setattr__(self, "standard_errors", errors)
            if errors.shape != rates.shape:
                raise ValueError(f"standard errors {errors.shape} for rates {rates.shape}")
            if not (np.isfinite(errors).all() and (errors >= 0).all()):
                raise ValueError("standard errors must be finite and not negative")

    @classmethod
    def from_vector(
        cls, vector: Vector, provenance: Mapping[str, Any] | None = None
    ) -> AcceptanceTable:
        """From Sequoia's convention, with or without its last entry: `[0, P1, ..., PW, reject]`.

        Both lengths are in use. A vector of at least three entries that sums to 1 (within
        `ROUNDING`) ends with P(all rejected); any other ends with PW, and nothing is dropped.
        ValueError when the first entry is not 0, and as for the class.
        """
        values = _vector(vector)
        if len(values) == 0:
            raise ValueError("the acceptance vector is empty")
        if values[0] != 0:
            raise ValueError(
                f"an acceptance vector starts with 0 ([0, P1, ..., PW, reject]), got {values[0]:g}"
            )
        _check_row(values[1:], "acceptance vector")
        has_reject = len(values) >= 3 and abs(values.sum() - 1) <= ROUNDING
        return cls.from_rates(values[1:-1] if has_reject else values[1:], provenance=provenance)

    @classmethod
    def from_rates(
        cls,
        rates: Sequence | np.ndarray,
        standard_errors: Sequence | np.ndarray | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> AcceptanceTable:
        """From [P1, ..., PW] (no leading 0), or one such row per depth, the same for every b."""

        def spread(values: Sequence | np.ndarray, name: str) -> np.ndarray:
            rows = np.atleast_2d(_floats(values, name))
            return np.tril(np.repeat(rows[:, None, :], rows.shape[1], axis=1))

        errors = None if standard_errors is None else spread(standard_errors, "standard errors")
        return cls(spread(rates, "rates"), errors, dict(provenance or {}))

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[float]],
        standard_errors: Sequence[Sequence[float]] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> AcceptanceTable:
        """From one row per number of children: rows[b-1] = [A[b][1], ..., A[b][b]]."""
        errors = None if standard_errors is None else _from_ragged([standard_errors])
        return cls(_from_ragged([rows]), errors, dict(provenance or {}))

    @classmethod
    def from_depths(
        cls,
        depths: Sequence[Sequence[Sequence[float]]],
        standard_errors: Sequence[Sequence[Sequence[float]]] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> AcceptanceTable:
        """From rows per depth of the parent: depths[d][b-1] as in `from_rows`."""
        errors = None if standard_errors is None else _from_ragged(standard_errors)
        return cls(_from_ragged(depths), errors, dict(provenance or {}))

    @property
    def max_children(self) -> int:
        """B, the most children the table knows about."""
        return self.rates.shape[1]

    @property
    def num_depths(self) -> int:
        """D, the number of depths that are told apart."""
        return self.rates.shape[0]

    @property
    def vectors(self) -> np.ndarray | None:
        """[D, B] when every row is a prefix of the longest (A[b][j] = A[B][j]), else None."""
        longest = self.rates[:, -1, :]
        prefixes = np.tril(np.repeat(longest[:, None, :], self.max_children, axis=1))
        return longest if np.array_equal(prefixes, self.rates) else None

    def at(self, depth: int, num_children: int) -> np.ndarray:
        """[num_children] acceptance of the children of a node at `depth`, in draw order.

        ValueError when the table does not know that many children."""
        if num_children > self.max_children:
            raise ValueError(
                f"a node with {num_children} children: the acceptance table knows at most "
                f"{self.max_children}"
            )
        if num_children == 0:
            return np.zeros(0)
        return self.rates[min(depth, self.num_depths - 1), num_children - 1, :num_children]

    def to_vector(self) -> np.ndarray:
        """[0, P1, ..., PW, reject], float64. ValueError when the table is not one vector."""
        vectors = self.vectors
        if vectors is None or self.num_depths > 1:
            raise ValueError(
                "not one vector: this table depends on the number of children or the depth; "
                "save it as .json"
            )
        return np.array([0.0, *vectors[0], max(0.0, 1.0 - vectors[0].sum())])

    def save(self, path: FilePath) -> None:
        """`.json`: everything. `.pt`: Sequoia's 1-D float32 vector, reject included."""
        suffix = Path(path).suffix
        if suffix == ".pt":
            torch.save(torch.tensor(self.to_vector(), dtype=torch.float32), path)
        elif suffix == ".json":
            errors = self.standard_errors
            data = {
                "format": FORMAT,
                "provenance": dict(self.provenance),
                "rates": _to_ragged(self.rates),
                "standard_errors": None if errors is None else _to_ragged(errors),
            }
            write_json(data, path)
        else:
            raise ValueError(f"{path}: save acceptance as .json or .pt, not {suffix!r}")

    @classmethod
    def load(cls, path: FilePath) -> AcceptanceTable:
        """Read `.json` (ours) or `.pt` (a vector, whatever device it was saved on)."""
        suffix = Path(path).suffix
        if suffix not in (".json", ".pt"):
            raise ValueError(f"{path}: acceptance is read from .json or .pt, not {suffix!r}")
        try:
            if suffix == ".pt":
                data = read_pt(path)
                if not isinstance(data, Tensor):
                    raise ValueError(f"expected a 1-D tensor, got {type(data).__name__}")
                return cls.from_vector(data, {"file": Path(path).name})
            data = read_json(path)
            if data.get("format") != FORMAT:
                raise ValueError(f'not an acceptance table (no "format": "{FORMAT}")')
            return cls.from_depths(
                data.get("rates") or [], data.get("standard_errors"), data.get("provenance")
            )
        except (TypeError, ValueError) as error:  # TypeError: numbers nested the wrong way
            text = str(error)
            raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None


Acceptance = AcceptanceTable | Vector


def as_table(acceptance: Acceptance) -> AcceptanceTable:
    """A table as it is, or a 1-D vector in Sequoia's convention `[0, P1, ..., PW, reject]`."""
    if isinstance(acceptance, AcceptanceTable):
        return acceptance
    return AcceptanceTable.from_vector(acceptance)


def _vector(values: Vector) -> np.ndarray:
    vector = _floats(values, "acceptance vector")
    if vector.ndim != 1:
        raise ValueError(f"an acceptance vector has one dimension, got shape {vector.shape}")
    return vector


def _floats(values: Any, name: str) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().double().cpu().numpy()
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: not an array of numbers") from None


def _square(values: Any, name: str) -> np.ndarray:
    """[D, B, B], read-only."""
    array = _floats(values, name)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[1] != array.shape[2] or array.size == 0:
        raise ValueError(f"{name}: expected shape [D, B, B] with D, B >= 1, got {array.shape}")
    array.setflags(write=False)
    return array


def _check(rates: np.ndarray) -> None:
    for depth, rows in enumerate(rates):
        for row_index, row in enumerate(rows):
            place = f"acceptance of {row_index + 1} children at depth {depth}"
            _check_row(row, place)
            if row[row_index + 1 :].any():
                raise ValueError(f"{place}: entries beyond the last child must be 0")


def _check_row(row: np.ndarray, place: str) -> None:
    for child, value in enumerate(row, start=1):
        if not np.isfinite(value) or value < 0:
            raise ValueError(f"{place}: P(child {child}) is {value:g}")
    if len(row) == 0:
        raise ValueError(f"{place}: empty, it needs at least one child")
    if row.sum() > 1 + ROUNDING:
        raise ValueError(f"{place}: sums to {row.sum():.6g}, above 1")


def _from_ragged(depths: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """[D, B, B] from depths[d][b-1] = list of b numbers."""
    width = max((len(rows) for rows in depths), default=0)
    rates = np.zeros((len(depths), width, width))
    for depth, rows in enumerate(depths):
        if len(rows) != width:
            raise ValueError(f"depth {depth} has {len(rows)} rows, another depth has {width}")
        for index, row in enumerate(rows):
            if len(row) != index + 1:
                raise ValueError(
                    f"depth {depth}: the row for {index + 1} children has {len(row)} entries"
                )
            rates[depth, index, : index + 1] = _floats(row, f"depth {depth}, row {index}")
    return rates


def _to_ragged(array: np.ndarray) -> list[list[list[float]]]:
    return [[row[: index + 1].tolist() for index, row in enumerate(rows)] for rows in array]
