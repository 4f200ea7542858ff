"""The two walkers: from a rule for one node to a verifier for a tree.

Both reduce a step to one flag per node, ``take``, and one walk: from the root go to the first
child, in the order the rule tries them, whose flag is set, else stop and draw the bonus.

- token level: take[i] = coin(accept[i], budget of i), every parent's budget being 1.
- sequence level (traversal, arXiv 2505.12398; on a chain block verification, 2403.10444): take[i] =
  node i stops here or some child of it is taken. Budgets flow down, the flags back up.

Each has two forms with the same verdict for the same uniforms. ``batched`` plans all rows at once
and chases pointers with constant shapes and no host reads. ``lazy`` plans only the nodes it comes
to, one at a time, which pays on a CPU, where host reads are free and rows are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .base import Drafted, Plan, Rule, Uniforms, Verdict
from .draws import coin, inverse_cdf
from .probs import RowsLike, faulty, on_host

if TYPE_CHECKING:
    from tree_builder.topology import TreeTensors


class _Walker:
    """What both walkers share: the draw is the rule's, the form follows the device."""

    suffix = ""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    @property
    def name(self) -> str:
        return self.rule.name + self.suffix

    @property
    def max_children(self) -> int | None:
        return self.rule.max_children

    @property
    def any_drafts(self) -> bool:
        """Is the rule lossless for any set of children, also one pruned after it was drawn?"""
        return getattr(self.rule, "any_drafts", False)

    def propose(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        return self.rule.draw(rows, num_children, uniforms)

    def verify(
        self,
        tree: TreeTensors,
        drafted: Drafted | None,  # [E, K]; None for a tree of one node
        target_rows: RowsLike,  # [m]
        draft_rows: RowsLike | None,  # [E]
        uniforms: Uniforms,
    ) -> Verdict:
        """Walk the tree; lazily in host memory, batched anywhere else. See :class:`Verifier`."""
        form = self.lazy if on_host(tree.parents) else self.batched
        return form(Step(tree, drafted, target_rows, draft_rows, uniforms))

    def batched(self, step: Step) -> Verdict:
        """Plan every row; constant shapes, nothing read on the host."""
        if step.drafted is None or step.draft_rows is None:  # a tree of one node
            root = step.tree.parents[:1]
            target = step.target_rows.select(root)
            bonus = inverse_cdf(target.probs, step.uniforms.bonus.view(1))
            return Verdict(root, root[0], bonus[0], faulty(target.probs)[0].long())
        plan, take = self._flags(step, step.drafted, step.draft_rows)
        return _walk_down(step, plan, take & (step.tree.children > 0))

    def lazy(self, step: Step) -> Verdict:
        """Plan node by node, along the walk only."""
        visits = _Visits(self.rule, step)
        return visits.verdict(self._descend(visits))

    def _flags(self, step: Step, drafted: Drafted, draft_rows: RowsLike) -> tuple[Plan, Tensor]:
        """The plan of all rows, and for each child slot [E, K] whether the walk may go there."""
        raise NotImplementedError

    def _descend(self, visits: _Visits) -> list[int]:
        """The accepted path."""
        raise NotImplementedError


class TokenLevel(_Walker):
    """Accept or reject each child by itself, walking down from the root."""

    def _flags(self, step: Step, drafted: Drafted, draft_rows: RowsLike) -> tuple[Plan, Tensor]:
        target = step.target_rows.select(step.tree.rows)
        plan = self.rule.plan(target, draft_rows, drafted, torch.ones_like(target.probs[:, 0]))
        return plan, coin(step.uniforms.accept[step.tree.children], plan.budgets)

    def _descend(self, visits: _Visits) -> list[int]:
        path = [0]
        while (plan := visits.plan(path[-1])) is not None:
            for child, share in visits.tries(path[-1], plan):
                if visits.flip(child, share):
                    path.append(child)
                    break
            else:
                break
        return path


class Traversal(_Walker):
    """Accept or reject whole subtrees, deepest first: never worse in expectation, same law."""

    suffix = "/traversal"

    def _flags(self, step: Step, drafted: Drafted, draft_rows: RowsLike) -> tuple[Plan, Tensor]:
        tree = step.tree
        target = step.target_rows.select(tree.rows)
        exists = tree.children > 0
        size, levels = tree.parents.shape[0], tree.num_levels - 1
        # Budgets flow down, one level a round. Every round plans all rows: which of them lie on a
        # level is data (in adaptive trees), and shapes must not depend on data.
        budget = target.probs.new_ones(size)
        for _ in range(levels):
            plan = self.rule.plan(target, draft_rows, drafted, budget[tree.rows])
            shares = torch.where(exists, plan.budgets, 1.0)  # empty slots point at the root: A = 1
            budget = budget.scatter(0, tree.children.flatten(), shares.flatten())
        stop = budget.index_copy(0, tree.rows, plan.stop)  # a leaf is accepted with its budget
        found = coin(step.uniforms.accept, stop)  # [m]
        for _ in range(levels):  # and back up: a node is found if it stops or a child is found
            below = (found[tree.children] & exists & (plan.budgets > 0)).any(-1)  # [E]
            found = found.index_copy(0, tree.rows, found[tree.rows] | below)
        return plan, found[tree.children] & (plan.budgets > 0)

    def _descend(self, visits: _Visits) -> list[int]:
        """Depth-first; ``path`` holds the nodes whose subtrees are being tried, the root first.

        The root's budget is 1 (None): if nothing below it is found, it stops for sure.
        """
        path = [self._visit(visits, 0, None)]
        while True:
            node, stop, tries = path[-1]
            child = next(((child, share) for child, share in tries if share > 0), None)
            if child is not None:
                path.append(self._visit(visits, *child))
            elif stop is None or visits.flip(node, stop):
                return [node for node, _, _ in path]
            else:
                path.pop()  # the whole subtree fails: on with the next child of its parent

    @staticmethod
    def _visit(visits: _Visits, node: int, budget: Tensor | None) -> _Visit:
        plan = visits.plan(node, budget)
        if plan is None:
            return _Visit(node, budget, iter(()))
        return _Visit(node, None if budget is None else plan.stop, visits.tries(node, plan))


class _Visit(NamedTuple):
    """A node while traversal is at it: what it stops with, and the children not tried yet."""

    node: int
    stop: Tensor | None  # None: for sure
    tries: Iterator[tuple[int, Tensor]]


class Step(NamedTuple):
    """The arguments of :meth:`Verifier.verify`."""

    tree: TreeTensors
    drafted: Drafted | None
    target_rows: RowsLike
    draft_rows: RowsLike | None
    uniforms: Uniforms


def _walk_down(step: Step, plan: Plan, take: Tensor) -> Verdict:
    """From the root to the first child taken, in try order, until none is. take [E, K]."""
    tree = step.tree
    in_order = take.gather(1, plan.order)
    first = plan.order.gather(1, in_order.byte().argmax(1, keepdim=True))
    child = tree.children.gather(1, first)[:, 0]
    following = torch.where(in_order.any(1), child, tree.rows)  # [E]; stopping = staying
    size = tree.parents.shape[0]
    following = torch.arange(size, device=child.device).index_copy(0, tree.rows, following)
    node = torch.zeros_like(tree.parents[:1])  # [1]; a 0-d index would be read on the host
    path = [node]
    for _ in range(tree.num_levels - 1):
        node = following[node]
        path.append(node)

    row = tree.row_of[node]
    inner, row = row >= 0, row.clamp(min=0)
    own = step.target_rows.select(node).probs  # [1, V]
    weights = torch.where(inner[:, None], plan.residual[row], own)
    bonus = inverse_cdf(weights, step.uniforms.bonus.view(1))
    bad = torch.where(inner, plan.fault[row], faulty(own))
    fault = torch.where(bad, node + 1, 0)
    return Verdict(torch.cat(path), tree.depth[node][0], bonus[0], fault[0])


class _Visits:
    """One step in host memory: its tables as Python lists, and the plans of the nodes visited."""

    def __init__(self, rule: Rule, step: Step) -> None:
        self._rule, self._step = rule, step
        self._row_of: list[int] = step.tree.row_of.tolist()
        self._children: list[list[int]] = step.tree.children.tolist()
        self._plans: dict[int, Plan] = {}

    def plan(self, node: int, budget: Tensor | None = None) -> Plan | None:
        """The plan of ``node`` with ``budget`` [] (None: all, 1); None at a leaf."""
        row, step = self._row_of[node], self._step
        if row < 0 or step.drafted is None or step.draft_rows is None:
            return None
        target, draft = step.target_rows.select([node]), step.draft_rows.select([row])
        budget = target.probs.new_ones(1) if budget is None else budget.view(1)
        self._plans[node] = self._rule.plan(target, draft, step.drafted.select(row), budget)
        return self._plans[node]

    def tries(self, node: int, plan: Plan) -> Iterator[tuple[int, Tensor]]:
        """(child, its budget []) in the order in which they are tried."""
        children = self._children[self._row_of[node]]
        for slot in plan.order[0].tolist():
            if children[slot] > 0:
                yield children[slot], plan.budgets[0, slot]

    def flip(self, node: int, probability: Tensor) -> bool:
        return bool(coin(self._step.uniforms.accept[node], probability))

    def verdict(self, path: list[int]) -> Verdict:
        last, step = path[-1], self._step
        plan = self._plans.get(last)
        if plan is None:
            weights = step.target_rows.select([last]).probs
            bad = bool(faulty(weights))
        else:
            weights, bad = plan.residual, bool(plan.fault)
        bonus = inverse_cdf(weights, step.uniforms.bonus.view(1))
        padding = [last] * (step.tree.num_levels - len(path))
        return Verdict(
            torch.tensor(path + padding),
            torch.tensor(len(path) - 1),
            bonus[0],
            torch.tensor(1 + last if bad else 0),
        )
