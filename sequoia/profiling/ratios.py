"""From sums per text to acceptance tables with standard errors over the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tree_builder import AcceptanceTable


def ratio(accepted: np.ndarray, visited: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Sum of ``accepted`` over sum of ``visited`` along axis 0 (the texts), with standard errors.

    The errors are those of a ratio estimator, texts being independent and positions inside a text
    not; None for a single text. What was never visited has rate 0.
    """
    texts = len(accepted)
    total = visited.sum(0)
    rate = np.divide(accepted.sum(0), total, out=np.zeros(accepted.shape[1:]), where=total > 0)
    if texts < 2:
        return rate, None
    residual = ((accepted - rate * visited) ** 2).sum(0) * texts / (texts - 1)
    error = np.divide(np.sqrt(residual), total, out=np.zeros_like(rate), where=total > 0)
    return rate, error


def table_of(
    accepted: Sequence[np.ndarray],
    visited: Sequence[np.ndarray],
    provenance: Mapping[str, Any],
) -> AcceptanceTable:
    """One table from the sums of every text.

    accepted  per text [D, B, B]: weight of child j being accepted at a node with b children
    visited   per text [D, B]: weight of the nodes with b children
    """
    rate, error = ratio(np.stack(accepted), np.stack(visited)[..., None])
    return AcceptanceTable(_at_most_one(rate), error, dict(provenance))


def vector_table_of(
    accepted: Sequence[np.ndarray],
    visited: Sequence[np.ndarray],
    provenance: Mapping[str, Any],
) -> AcceptanceTable:
    """The same for a rule whose A[b][j] does not depend on b: all nodes with a child j count."""
    children = np.stack(accepted).sum(2)  # [texts, D, B]
    nodes = np.stack(visited)[..., ::-1].cumsum(-1)[..., ::-1]  # [texts, D, B] with b >= j
    rate, error = ratio(children, nodes)
    return AcceptanceTable.from_rates(_at_most_one(rate), error, provenance)


def _at_most_one(rate: np.ndarray) -> np.ndarray:
    """Rates estimated from different nodes may sum to a little more than 1."""
    return rate / np.maximum(rate.sum(-1, keepdims=True), 1.0)
