"""The six views of a tree in a Sequoia growmap, and what is wrong when they disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tree_builder.topology import TreeTopology

KEYS = ("roots", "branches", "Successors", "mask", "depth", "size")


def growmap_views(tree: TreeTopology) -> dict[str, Any]:
    """The six keys of a growmap: nested lists of ints, `mask` [m, m] and `depth` [m] long."""
    return {
        "roots": [list(level) for level in tree.levels],
        "branches": [[len(tree.children[node]) for node in level] for level in tree.levels],
        "Successors": [list(children) for children in tree.children],
        "mask": tree.ancestor_mask.long(),
        "depth": torch.tensor(tree.depth, dtype=torch.long),
        "size": tree.size,
    }


def parents_of_growmap(growmap: Mapping[str, Any]) -> tuple[int, ...]:
    """Parents array of a growmap whose six views agree.

    `Successors`, `branches` and `mask` each describe the whole tree. The tree that most of the
    six views describe is taken for the intended one; any view that differs from it is named,
    with the place. ValueError then, and for missing keys, wrong types and wrong numbering.
    """
    views = {key: _normalise(growmap, key) for key in KEYS}
    faults: dict[str, str] = {}
    candidates: list[TreeTopology] = []  # different ones only
    for key, read in _READERS.items():
        try:
            tree = _tree(read(views[key]))
            if tree not in candidates:
                candidates.append(tree)
        except ValueError as error:
            faults[key] = str(error)
    if not candidates:
        raise ValueError(_message(faults))
    differences = [
        {key: _difference(views[key], expected) for key, expected in _expected(tree).items()}
        for tree in candidates
    ]
    wrong = [{key: text for key, text in found.items() if text} for found in differences]
    best = min(range(len(candidates)), key=lambda i: len(wrong[i]))
    if wrong[best]:
        raise ValueError(_message({**wrong[best], **faults}))
    return candidates[best].parents


def _tree(parents: Sequence[int]) -> TreeTopology:
    from tree_builder.topology import TreeTopology  # it delegates to this module

    return TreeTopology(tuple(parents))


def _message(faults: Mapping[str, str]) -> str:
    noun = "view" if len(faults) == 1 else "views"
    return f"growmap: wrong {noun} " + "; ".join(f"'{key}': {text}" for key, text in faults.items())


def _normalise(growmap: Mapping[str, Any], key: str) -> Any:
    """Nested lists of plain ints (a long tensor for the mask), whatever the file held."""
    if not isinstance(growmap, Mapping):
        raise ValueError(f"a growmap is a dict of {', '.join(KEYS)}; got {type(growmap).__name__}")
    if key not in growmap:
        missing = [name for name in KEYS if name not in growmap]
        raise ValueError(f"growmap: missing {', '.join(map(repr, missing))}")
    value = growmap[key]
    try:
        if key == "mask":
            value = torch.as_tensor(value)
            integral = not value.is_floating_point() or bool((value == value.round()).all())
            if value.ndim != 2 or not integral:
                raise ValueError(f"not a matrix of 0 and 1, shape {tuple(value.shape)}")
            return value.long().cpu()
        value = value.tolist() if isinstance(value, Tensor) else value
        if key == "size":
            return _integer(value)
        if key == "depth":
            return [_integer(item) for item in value]
        return [[_integer(item) for item in row] for row in value]
    except (TypeError, ValueError) as error:
        raise ValueError(f"growmap: wrong view '{key}': {error}") from None


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def _from_successors(successors: list[list[int]]) -> list[int]:
    parents = [-1] * len(successors)
    expected = 1
    for node, children in enumerate(successors):
        for child in children:
            if child != expected or child >= len(parents):
                wanted = "no more" if expected >= len(parents) else expected
                raise ValueError(
                    f"node {node} lists child {child} where breadth-first numbering of "
                    f"{len(parents)} nodes has {wanted}"
                )
            parents[child] = node
            expected += 1
    if expected != len(parents):
        raise ValueError(f"node {expected} is nobody's child")
    return parents


def _from_branches(branches: list[list[int]]) -> list[int]:
    parents, first = [-1], 0
    for level, counts in enumerate(branches):
        if len(counts) != len(parents) - first:
            raise ValueError(
                f"level {level} has {len(counts)} entries, the level above has "
                f"{len(parents) - first} children"
            )
        for position, count in enumerate(counts):
            if count < 0:
                raise ValueError(f"level {level}, entry {position} is negative: {count}")
            parents.extend([first + position] * count)
        first += len(counts)
    if first != len(parents):
        raise ValueError("the last level is not all zeros")
    return parents


def _from_mask(mask: Tensor) -> list[int]:
    size = len(mask)
    if mask.shape[1] != size:
        raise ValueError(f"shape {tuple(mask.shape)} is not square")
    strict = mask.tril(-1)
    # The parent of a node is its ancestor with the largest id.
    ids = torch.arange(1, size + 1)
    return (torch.where(strict != 0, ids, 0).amax(dim=1) - 1).tolist() if size else []


_READERS: dict[str, Callable[[Any], list[int]]] = {
    "Successors": _from_successors,
    "branches": _from_branches,
    "mask": _from_mask,
}


def _expected(tree: TreeTopology) -> dict[str, Any]:
    views = growmap_views(tree)
    return {**views, "depth": views["depth"].tolist()}


def _difference(found: Any, expected: Any) -> str:
    """Where `found` first differs from `expected`, in words; empty when it does not."""
    if isinstance(expected, Tensor):
        if found.shape != expected.shape:
            return f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
        wrong = (found != expected).nonzero()
        if not len(wrong):
            return ""
        row, column = wrong[0].tolist()
        return f"[{row}][{column}] is {found[row, column].item()}, expected {expected[row, column]}"
    if not isinstance(expected, list):
        return "" if found == expected else f"is {found}, expected {expected}"
    if len(found) != len(expected):
        return f"has {len(found)} entries, expected {len(expected)}"
    for index, (item, wanted) in enumerate(zip(found, expected, strict=True)):
        if item != wanted:
            return f"[{index}] is {item}, expected {wanted}"
    return ""
