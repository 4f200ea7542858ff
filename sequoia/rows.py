"""Rows of a tree kept level by level, as they were made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


class JoinedRows:
    """The draft's rows of all levels as one table [E, V], joined only when read as a whole.

    The CPU walk asks for a few single rows; copying all of them (200 kB each at V = 49152)
    would cost more than the walk.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    @cached_property
    def logits(self) -> Tensor:  # [E, V]
        return torch.cat([part.logits for part in self.parts])

    @cached_property
    def probs(self) -> Tensor:  # [E, V]
        return torch.cat([part.probs for part in self.parts])

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    def select(self, index: Tensor | Sequence[int]) -> Any:
        """Rows at ``index`` ([c] long, or host ints), in that order."""
        if len(self.parts) == 1:
            return self.parts[0].select(index)
        if not isinstance(index, Tensor) and len(index) == 1:
            row = index[0]
            for part in self.parts:
                if row < part.num_rows:
                    return part.select([row])
                row -= part.num_rows
        kind = type(self.parts[0])
        return kind(self.logits, self.probs).select(index)
