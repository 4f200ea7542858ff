"""Checked pairs of rows, and the excess function that the analysis of rejection rules rests on.

For rows p (target) and q (draft) let ``E(b) = sum_x (p_x - b q_x)+``, the target mass that lies
above b times the draft. Recursive rejection never leaves this family: its unnormalised residual
after any number of rejected children is ``(p - b q)+`` for some b, so acceptance needs E at a few
(or a million) points b and no residual vector. One sort by p/q makes each point O(log V).
"""

from __future__ import annotations

import torch
from torch import Tensor

SUM_TOLERANCE = 1e-4


def checked_pair(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The rows in fp64, scaled to sum to one exactly (up to fp64 rounding).

    p, q: [B, V] floating, probabilities. Raises ValueError naming the tensor and the row when they
    are not distributions: NaN, infinite or negative entries, a sum off by more than 1e-4 (twice the
    machine epsilon for half precision), shapes that disagree.
    """
    if p.dim() != 2 or p.shape != q.shape or p.shape[1] == 0:
        raise ValueError(
            f"p and q must both be [B, V] with V >= 1, got {list(p.shape)} and {list(q.shape)}"
        )
    return _checked_rows(p, "p"), _checked_rows(q, "q")


def _checked_rows(rows: Tensor, name: str) -> Tensor:
    if not rows.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {rows.dtype}")
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(rows.dtype).eps)
    exact = rows.to(torch.float64)
    total = exact.sum(-1)  # [B]
    problems = (
        (exact.isnan().any(-1), "holds a NaN"),
        ((exact < 0).any(-1), "holds a negative probability"),
        (~((total - 1).abs() <= tolerance), "does not sum to 1"),
    )
    for bad, what in problems:
        if bad.any():
            row = int(bad.nonzero()[0])
            raise ValueError(f"row {row} of {name} {what} (its sum is {float(total[row]):.8g})")
    return exact / total[:, None]


def checked_count(num_children: int, limit: int | None, why: str) -> int:
    """``num_children`` if 1 <= num_children <= limit, else ValueError."""
    if isinstance(num_children, bool) or not isinstance(num_children, int) or num_children < 1:
        raise ValueError(f"num_children must be an integer of at least 1, got {num_children!r}")
    if limit is not None and num_children > limit:
        raise ValueError(f"num_children is {num_children}, {why} takes at most {limit}")
    return num_children


class ExcessMass:
    """``E(b) = sum_x (p_x - b q_x)+`` at any number of points per row, after one sort.

    p, q: [B, V] fp64. Tokens are held in ascending order of p/q; those with q = 0 come last (their
    mass is in E for every b).
    """

    def __init__(self, p: Tensor, q: Tensor) -> None:
        ratio = torch.where(q > 0, p / q, torch.inf)
        self.ratio, self.order = ratio.sort(dim=-1)  # [B, V]
        self.p = p.gather(-1, self.order)
        self.q = q.gather(-1, self.order)
        self._p_above = suffix_sums(self.p)  # [B, V + 1]
        self._q_above = suffix_sums(self.q)

    def __call__(self, b: Tensor) -> Tensor:
        """b: [B, N], at least 0. Returns E(b) [B, N]."""
        b = b.contiguous()
        above = torch.searchsorted(self.ratio, b, right=True)  # first token with p/q > b
        return (self._p_above.gather(-1, above) - b * self._q_above.gather(-1, above)).clamp_min(0)

    def count(self, b: Tensor, inclusive: bool) -> Tensor:
        """Number of tokens [B, N] with p/q <= b (inclusive) or p/q < b."""
        return torch.searchsorted(self.ratio, b.contiguous(), right=inclusive)


def suffix_sums(values: Tensor) -> Tensor:
    """[B, V] -> [B, V + 1]; entry i is the sum of values[i:]."""
    sums = values.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([sums, sums.new_zeros(sums.shape[0], 1)], dim=-1)
