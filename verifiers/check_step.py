"""One decoding step on toy models, as the engine runs it: grow level by level, then verify.

Every call to the verifier is enumerated (:mod:`verifiers.enumeration`), so a step yields all the
worlds it may lead to and the text emitted in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from tree_builder.topology import TreeTopology

from .base import Drafted, Uniforms, Verdict
from .check_cases import Context, Policy, Toy
from .enumeration import World, labels, outcomes

STRIDE = 10_000  # labels reserved for one step


class Broken(Exception):
    """The verifier did something no verifier may do."""


def follow(tree: TreeTopology) -> Policy:
    """The policy that grows a fixed topology."""
    counts = [tuple(len(tree.children[node]) for node in level) for level in tree.levels]
    return lambda depth, contexts: counts[depth]


@dataclass(frozen=True)
class Growing:
    """A tree while it grows: breadth-first parents, contexts of its nodes, what was drawn."""

    parents: tuple[int, ...]
    contexts: tuple[Context, ...]
    level: range  # nodes of the deepest level so far
    drawn: tuple[tuple[tuple[int, ...], tuple[bool, ...], int], ...] = ()  # per row


def step(
    world: World, toy: Toy, text: Context, policy: Policy, number: int
) -> Iterator[tuple[World, Context]]:
    """All (world, tokens emitted) of one step after ``text``."""
    first = Growing((-1,), (text,), range(1))
    for grown, tree in _grow(world, toy, first, policy, 0, number * STRIDE):
        yield from _verify(grown, toy, tree, number * STRIDE)


def _grow(
    world: World, toy: Toy, tree: Growing, policy: Policy, depth: int, first_label: int
) -> Iterator[tuple[World, Growing]]:
    """Draw level after level; every combination of draws is a world."""
    counts = tuple(policy(depth, tuple(tree.contexts[node] for node in tree.level)))
    inner = [(node, count) for node, count in zip(tree.level, counts, strict=True) if count]
    if not inner:
        yield world, tree
        return
    rows = toy.draft_rows([tree.contexts[node] for node, _ in inner])
    widths = tuple(count for _, count in inner)
    done = len(tree.drawn)  # rows drawn so far; 16 labels are reserved for each
    uniforms = labels(16 * len(inner), first_label + 16 * done).view(len(inner), 16)
    uniforms = uniforms[:, : max(widths)]
    ready = _reveal(world, uniforms)
    for after, drafted in outcomes(
        ready, lambda verifier: verifier.propose(rows, widths, uniforms)
    ):
        yield from _grow(
            after, toy, _extend(tree, inner, drafted, toy.size), policy, depth + 1, first_label
        )


def _extend(
    tree: Growing, inner: list[tuple[int, int]], drafted: Drafted, vocabulary: int
) -> Growing:
    """The tree with one more level: the children of its ``inner`` nodes (node, count)."""
    parents, contexts, drawn = list(tree.parents), list(tree.contexts), list(tree.drawn)
    table = zip(
        inner, drafted.tokens.tolist(), drafted.live.tolist(), drafted.hub.tolist(), strict=True
    )
    for (node, count), tokens, live, hub in table:
        if any(not 0 <= token < vocabulary for token in tokens):
            raise Broken(f"proposed tokens {tokens}, outside the vocabulary of {vocabulary}")
        drawn.append((tuple(tokens[:count]), tuple(live[:count]), hub))
        parents += [node] * count
        contexts += [(*tree.contexts[node], token) for token in tokens[:count]]
    return Growing(
        tuple(parents), tuple(contexts), range(len(tree.parents), len(parents)), tuple(drawn)
    )


def _verify(
    world: World, toy: Toy, tree: Growing, first_label: int
) -> Iterator[tuple[World, Context]]:
    tensors = _topology(tree.parents).tensors("cpu")
    E, K = tensors.children.shape
    if E == 0:
        raise ValueError("a tree of one node drafts nothing: give it at least one child")
    m = len(tree.parents)
    padded = [
        (list(tokens) + [0] * (K - len(tokens)), list(live) + [False] * (K - len(live)), hub)
        for tokens, live, hub in tree.drawn
    ]
    drafted = Drafted(*(torch.tensor(column) for column in zip(*padded, strict=True)))
    target = toy.target_rows(list(tree.contexts))
    draft = toy.draft_rows([tree.contexts[node] for node in tensors.rows.tolist()])
    draws = torch.stack([labels(16, first_label + 16 * row)[:K] for row in range(E)])
    others = labels(m + 1, first_label + STRIDE // 2)
    uniforms = Uniforms(draws, others[:m], others[m])
    ready = _reveal(world, others)

    def verify(verifier: Any) -> Verdict:
        return verifier.verify(tensors, drafted, target, draft, uniforms)

    for after, verdict in outcomes(ready, verify):
        node = _last_node(verdict, tree, toy.size)
        text = tree.contexts[node][len(tree.contexts[0]) :]
        yield after, (*text, int(verdict.bonus))


@cache
def _topology(parents: tuple[int, ...]) -> TreeTopology:
    """Adaptive growth makes the same few shapes again and again."""
    return TreeTopology(parents)


def _reveal(world: World, uniforms: torch.Tensor) -> World:
    """The world with these uniforms in it, nothing known of them yet."""
    fresh = {label: (0.0, 1.0) for label in uniforms.flatten().tolist() if label not in world.known}
    return world._replace(known={**world.known, **fresh})


def _last_node(verdict: Verdict, tree: Growing, vocabulary: int) -> int:
    """The last node of the verdict's path, after checking that it is one."""
    path, accepted = verdict.path.tolist(), int(verdict.num_accepted)
    if int(verdict.fault):
        raise Broken(f"fault {int(verdict.fault)} on rows that are distributions")
    if not 0 <= int(verdict.bonus) < vocabulary:
        raise Broken(f"bonus {int(verdict.bonus)} is outside the vocabulary of {vocabulary}")
    steps = [0, *path[1 : accepted + 1]]
    live = [True] + [flag for _, row, _ in tree.drawn for flag in row]  # by node: drawing order
    sound = path[0] == 0 and path[accepted:] == [path[accepted]] * (len(path) - accepted)
    sound = sound and all(tree.parents[b] == a for a, b in pairwise(steps))
    if not sound or not all(live[node] for node in steps):
        raise Broken(f"path {path}, {accepted} accepted, is no path of live nodes from the root")
    return steps[-1]
