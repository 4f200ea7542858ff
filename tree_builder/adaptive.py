"""Context-adaptive trees: which drawn nodes are expanded depends on what was drawn.

In each round the most promising nodes drawn so far (by the product of q along their path) get
children, within a width per round and a depth limit; a node budget may prune the result. In the
line of EAGLE-2 (arXiv 2406.16858), OPT-Tree (arXiv 2406.17276) and DySpec (arXiv 2410.11744).

Law: a node's number of children is fixed before they are drawn, and without ``budget`` no drawn
child is removed; an unexpanded node stays as a leaf. That is lossless under every rule. Pruning
drawn children by their probability is lossless only for rules that accept any set of drafts
(``target_match``): the engine refuses it for the others.

Every shape is constant, and nothing is read on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tree_builder.grow import DraftForward, Grown, Growth, StaticGrowth, join_drafted
from tree_builder.shapes import MAX_SPEC_NODES
from tree_builder.topology import TreeTensors, TreeTopology


@dataclass(frozen=True)
class AdaptiveTree:
    """The shape limits of an adaptive tree.

    ``children`` per expanded node; ``width`` nodes expanded per round; ``num_levels`` the largest
    depth + 1, one draft pass per level below it; ``budget`` nodes (root included) kept for the
    target, None = all drawn ones.
    """

    children: int
    width: int
    num_levels: int
    budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("children", "width", "num_levels"):
            if getattr(self, name) < 1:
                raise ValueError(f"adaptive tree: {name} must be at least 1, got {self}")
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"adaptive tree: budget must be at least 1 node, got {self.budget}")
        if self.num_levels > MAX_SPEC_NODES or self.drawn > MAX_SPEC_NODES:
            raise ValueError(f"adaptive tree: draws more than {MAX_SPEC_NODES} nodes, got {self}")

    @property
    def expanded(self) -> tuple[int, ...]:
        """Nodes that get children in each round: the root, then at most ``width``."""
        counts: list[int] = []
        frontier = 1
        for _ in range(self.num_levels - 1):
            counts.append(min(self.width, frontier) if counts else 1)
            frontier += counts[-1] * (self.children - 1)
        return tuple(counts)

    @property
    def drawn(self) -> int:
        """Nodes drawn, root included."""
        return 1 + self.children * sum(self.expanded)

    @property
    def size(self) -> int:
        """Nodes the target scores, root included."""
        return self.drawn if self.budget is None else min(self.budget, self.drawn)

    @property
    def prunes(self) -> bool:
        """Are drawn children removed? Legal only for rules that take any set of drafts."""
        return self.size < self.drawn

    @property
    def num_rows(self) -> int:
        return sum(self.expanded)

    @property
    def max_children(self) -> int:
        return self.children if self.num_rows else 0

    def truncate(self, num_levels: int) -> AdaptiveTree:
        """The same limits with at most ``num_levels`` levels."""
        levels = min(num_levels, self.num_levels)
        return AdaptiveTree(self.children, self.width, levels, self.budget)

    @classmethod
    def parse(cls, spec: str) -> AdaptiveTree:
        """``adaptive:KxWxL`` or ``adaptive:KxWxL@BUDGET``: children, width, levels, nodes kept."""
        shape, at, budget = spec.removeprefix("adaptive:").partition("@")
        try:
            children, width, levels = (int(number) for number in shape.split("x"))
            return cls(children, width, levels, int(budget) if at else None)
        except ValueError as error:
            raise ValueError(
                f"tree {spec!r}: expected adaptive:KxWxL or adaptive:KxWxL@BUDGET with K children "
                f"per expanded node, W nodes expanded per level, L levels ({error})"
            ) from None

    def __str__(self) -> str:
        limit = "" if self.budget is None else f"@{self.budget}"
        return f"adaptive:{self.children}x{self.width}x{self.num_levels}{limit}"


class AdaptiveGrowth:
    """Grow an :class:`AdaptiveTree` on one device."""

    def __init__(self, limits: AdaptiveTree, device: torch.device | str) -> None:
        self.limits = limits
        self.size = limits.size
        self.num_rows = limits.num_rows
        self.max_children = limits.max_children
        self.num_levels = limits.num_levels
        self._ids = torch.arange(limits.drawn, device=device)
        self._eye = torch.eye(limits.drawn, dtype=torch.bool, device=device)

    def grow(
        self,
        root_token: Tensor,
        root_rows: Any,
        forward: DraftForward,
        verifier: Any,
        uniforms: Tensor,
    ) -> Grown:
        """Draw the tree; see :class:`tree_builder.grow.Growth`.

        Nodes are numbered as they are drawn, so parents come before children.
        """
        k, eye = self.limits.children, self._eye
        tokens, parents, depth = root_token, self._ids[:1], self._ids[:1]
        mask = eye[:1]  # [nodes so far, drawn]
        score = torch.zeros_like(root_token, dtype=torch.float32)  # log of the path's product of q
        drafted, rows, expanded = [], [], []
        open_nodes = torch.zeros_like(score)  # 0 = may be expanded, -inf = already is
        start = 0
        worst = torch.finfo(score.dtype).min  # an open node of q = 0, yet before an expanded one
        for count in self.limits.expanded:
            if start == 0:
                chosen, level = self._ids[:1], root_rows
            else:
                promise = score.clamp(min=worst) + open_nodes
                chosen = promise.topk(count).indices.sort().values
                level = forward(tokens[chosen], chosen, depth[chosen], mask[chosen])
            draws = uniforms[start : start + count]
            new = verifier.propose(level, (k,) * count, draws)
            first = tokens.shape[0]
            ids = self._ids[first : first + count * k]
            path = score[chosen, None] + self._log_q(level, new)
            open_nodes = open_nodes.index_fill(0, chosen, float("-inf"))
            tokens = torch.cat([tokens, new.tokens.reshape(-1)])
            parents = torch.cat([parents, chosen.repeat_interleave(k, output_size=count * k)])
            depth = torch.cat([depth, depth[parents[first:]] + 1])
            mask = torch.cat([mask, mask[parents[first:]] | eye[ids]])
            score = torch.cat([score, path.reshape(-1)])
            open_nodes = torch.cat([open_nodes, torch.zeros_like(ids, dtype=torch.float32)])
            drafted.append(new)
            rows.append(level)
            expanded.append(chosen)
            start += count
        nodes = torch.cat(expanded) if expanded else self._ids[:0]
        children = (self._ids[1:]).view(self.num_rows, self.max_children)
        row_of = torch.full_like(self._ids, -1).index_copy(0, nodes, self._ids[: self.num_rows])
        tree = TreeTensors(parents, depth, nodes, row_of, children, mask, self.num_levels)
        grown = Grown(tree, tokens, join_drafted(drafted, self.max_children), rows)
        return self._prune(grown, score) if self.limits.prunes else grown

    @staticmethod
    def _log_q(rows: Any, drafted: Any) -> Tensor:
        """[b, k] log q of the drawn children; a child that is not there is the least promising.

        From the logits, not ``probs``: at temperature 0 those are one-hot.
        """
        logits = rows.logits
        q = logits.gather(1, drafted.tokens) - logits.logsumexp(-1, keepdim=True)
        return q.float().masked_fill(~drafted.live, float("-inf"))

    def _prune(self, grown: Grown, score: Tensor) -> Grown:
        """Keep the ``size`` best nodes. A stable sort keeps a parent before an equal child.

        Which of the kept nodes still have children is data, so every kept node gets a row; one
        without children has no live slot there.
        """
        tree, ids = grown.tree, self._ids[: self.size]
        best = score.sort(descending=True, stable=True).indices[: self.size]
        keep = best.sort().values  # [size] as drawn, ascending: parents stay before children
        new_id = torch.zeros_like(self._ids).index_copy(0, keep, ids)
        kept = torch.zeros_like(self._ids, dtype=torch.bool).index_fill(0, keep, True)
        row = tree.row_of[keep]
        drawn_at, row = (row >= 0)[:, None], row.clamp(min=0)
        children = tree.children[row]  # [size, K]
        alive = kept[children] & drawn_at
        drafted = grown.drafted
        whole = type(grown.draft_rows[0])(
            torch.cat([part.logits for part in grown.draft_rows])[row],
            torch.cat([part.probs for part in grown.draft_rows])[row],
        )
        return Grown(
            TreeTensors(
                parents=new_id[tree.parents[keep]],
                depth=tree.depth[keep],
                rows=ids,
                row_of=ids,
                children=torch.where(alive, new_id[children], 0),
                mask=tree.mask[keep][:, keep],
                num_levels=tree.num_levels,
            ),
            grown.tokens[keep],
            type(drafted)(drafted.tokens[row], drafted.live[row] & alive, drafted.hub[row]),
            [whole],
        )


Tree = TreeTopology | AdaptiveTree
"""What a decoder grows: a fixed topology, or the limits of one chosen while drafting."""


def make_growth(tree: Tree, device: torch.device | str) -> Growth:
    """The growth of a tree on a device; all index tensors are made here, outside any step."""
    if isinstance(tree, AdaptiveTree):
        return AdaptiveGrowth(tree, device)
    return StaticGrowth(tree, device)
