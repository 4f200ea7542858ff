"""The words a verifier speaks: drafted children, uniforms, plans, verdicts, and three protocols.

A *rule* knows one node: how its children are drawn and with which probabilities they are accepted.
A *walker* (:mod:`verifiers.walkers`) turns a rule into a *verifier*, which knows a whole tree. Draw
and acceptance live in one object, because mixing the draw of one rule with the acceptance of
another is silently wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from .probs import RowsLike

if TYPE_CHECKING:
    from tree_builder.topology import TreeTensors


class Drafted(NamedTuple):
    """Children drawn for ``b`` nodes, in draw order. Travels with the tree.

    tokens: [b, k] long, always inside the vocabulary; live: [b, k] bool, False = no child there
    (padding, or nothing left to draw): never accepted; hub: [b] long, column of the (first) hub, -1
    if there is none. Hubs are stored because recomputing an argmax may break a tie otherwise.
    """

    tokens: Tensor
    live: Tensor
    hub: Tensor

    def select(self, row: int) -> Drafted:
        """One row, as [1, k] views."""
        return Drafted(*(field[row : row + 1] for field in self))


class Verdict(NamedTuple):
    """What one step accepted.

    path: [L] long, node ids from the root (0) down, padded with its last node, L = tree.num_levels;
    num_accepted: [] long, the depth of that node; bonus: [] long token drawn after the path;
    fault: [] long, 0 = fine, else 1 + the node whose row is no distribution (NaN, negative, no
    mass): raised by the engine after the step's one synchronisation.
    """

    path: Tensor
    num_accepted: Tensor
    bonus: Tensor
    fault: Tensor


class Uniforms(NamedTuple):
    """All randomness of one step: views of one flat fp64 tensor, uniform on [0, 1).

    draw: [E, K], one per child slot of each row; accept: [m], one per node (token level: is this
    child accepted; sequence level: does the walk stop here); bonus: [].
    """

    draw: Tensor
    accept: Tensor
    bonus: Tensor

    @staticmethod
    def num(num_rows: int, max_children: int, size: int) -> int:
        """Length of the flat tensor for E rows, K children, m nodes."""
        return num_rows * max_children + size + 1

    @classmethod
    def view(cls, flat: Tensor, num_rows: int, max_children: int, size: int) -> Uniforms:
        """flat: [num(E, K, m)] -> its parts, without a copy."""
        wanted = cls.num(num_rows, max_children, size)
        if flat.shape != (wanted,):
            raise ValueError(f"uniforms have shape {tuple(flat.shape)}, expected ({wanted},)")
        draws = num_rows * max_children
        return cls(
            flat[:draws].view(num_rows, max_children),
            flat[draws : draws + size],
            flat[draws + size],
        )


class Plan(NamedTuple):
    """What a rule does at ``B`` nodes that carry budgets A, given the children that were drawn.

    order: [B, k] long, slots in the order they are tried; budgets: [B, k], per slot, the
    probability that its subtree succeeds given that everything tried before it failed (0 where
    not live); stop: [B], the probability that the node stops here given that all children failed
    (1 at A = 1); residual: [B, V], unnormalised law of the bonus if it does; fault: [B] bool.
    """

    order: Tensor
    budgets: Tensor
    stop: Tensor
    residual: Tensor
    fault: Tensor


class Rule(Protocol):
    """One node's rule: its draw, and its acceptance for target (A p, and 1 - A on a dummy token).

    A = 1 is the token-level rule. ``max_children``: the most children it can take, None = any.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_children(self) -> int | None: ...

    def draw(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        """rows [b]; num_children: one host-known count per row; uniforms [b, >= k] fp64 -> [b, k],
        k = max(num_children), live False beyond a row's count."""
        ...

    def plan(self, target: RowsLike, draft: RowsLike, drafted: Drafted, budget: Tensor) -> Plan:
        """target [B], draft [B], drafted [B, k], budget [B] in [0, 1] -> Plan over B rows."""
        ...


class Verifier(Protocol):
    """How children are drawn and which are accepted, for a whole tree.

    Law: the emitted tokens (accepted path, then bonus) follow the target's law exactly given the
    past, whatever the draft is. Nothing random is stored between steps.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_children(self) -> int | None: ...

    def propose(self, rows: RowsLike, num_children: Sequence[int], uniforms: Tensor) -> Drafted:
        """Children for the ``b`` inner nodes of one level; see :meth:`Rule.draw`."""
        ...

    def verify(
        self,
        tree: TreeTensors,
        drafted: Drafted,  # [E, K]
        target_rows: RowsLike,  # [m]
        draft_rows: RowsLike,  # [E]
        uniforms: Uniforms,
    ) -> Verdict: ...


def check_members(candidate: object) -> None:
    """ValueError for an object that is no :class:`Verifier`, naming what it lacks."""
    for member in ("name", "propose", "verify", "max_children"):
        if not hasattr(candidate, member):
            raise ValueError(
                f"{candidate!r} is no verifier: it has no {member!r} "
                "(give a name of verifiers.NAMES, or an object of verifiers.Verifier)"
            )
