"""Autoregressive decoding on the same runner: the baseline, and the oracle of greedy text."""

from __future__ import annotations

from typing import Any

from sequoia.decoder import SpeculativeDecoder
from sequoia.inputs import Ancestral
from sequoia.pair import Pair
from tree_builder import TreeTopology


class AutoregressiveDecoder(SpeculativeDecoder):
    """One token per target pass: a tree that is its root alone, without a draft model."""

    def __init__(self, pair: Pair, max_length: int | None = None, **engine: Any) -> None:
        """``engine``: how passes are run, as for :class:`SpeculativeDecoder`."""
        super().__init__(pair, TreeTopology((-1,)), Ancestral(), max_length, **engine)
        self.tree_name = "none (autoregressive)"
