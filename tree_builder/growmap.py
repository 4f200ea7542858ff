"""Trees in files: our JSON (parents and metadata), and Sequoia growmaps as `.pt` or JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tree_builder.shapes import SPECS, is_spec, parse_spec
from tree_builder.storage import FilePath, read_json, read_pt, write_json
from tree_builder.topology import TreeTopology
from tree_builder.views import KEYS


def load_tree(path_or_spec: FilePath) -> TreeTopology:
    """Tree of a spec (`chain:5 | kary:2^3 | chains:4x8`) or of a file (`.json`, `.pt`).

    ValueError for an unknown spec, an unreadable or unsafe file, or views that disagree;
    FileNotFoundError when the file is missing.
    """
    return read_tree(path_or_spec)[0]


def read_tree(path_or_spec: FilePath) -> tuple[TreeTopology, dict[str, Any]]:
    """Like `load_tree`, with the file's metadata (name, how it was built; empty for a spec)."""
    if isinstance(path_or_spec, str) and is_spec(path_or_spec):
        return parse_spec(path_or_spec), {}
    path = Path(path_or_spec)
    readers = {".json": read_json, ".pt": read_pt}
    if path.suffix not in readers:
        raise ValueError(f"unknown tree {str(path)!r}; use {SPECS}, or a .json or .pt file")
    if not path.is_file():
        raise FileNotFoundError(f"no tree file {os.fspath(path)!r}")
    data = readers[path.suffix](path)
    try:
        return _tree_of(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def save_tree(
    tree: TreeTopology, path: FilePath, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a tree: `.pt` as a Sequoia growmap (six keys, nothing more), `.json` as ours.

    `metadata` goes into the JSON next to `parents`; ValueError when it is given for a `.pt`,
    uses a reserved key, or the suffix is another.
    """
    metadata = dict(metadata or {})
    suffix = Path(path).suffix
    if suffix == ".pt":
        if metadata:
            raise ValueError(f"{path}: a .pt growmap has no place for metadata, use .json")
        torch.save(tree.to_growmap(), path)
    elif suffix == ".json":
        reserved = sorted({"parents", *KEYS} & metadata.keys())
        if reserved:
            raise ValueError(f"{path}: metadata may not use the key {reserved[0]!r}")
        write_json({**metadata, "parents": tree.parents}, path)
    else:
        raise ValueError(f"{path}: save a tree as .json or .pt, not {suffix!r}")


def _tree_of(data: Any) -> tuple[TreeTopology, dict[str, Any]]:
    if not isinstance(data, Mapping):
        raise ValueError(f"a tree file holds a dict, got {type(data).__name__}")
    metadata = {key: value for key, value in data.items() if key not in ("parents", *KEYS)}
    if "parents" not in data:
        return TreeTopology.from_growmap(data), metadata
    if not isinstance(data["parents"], list):
        raise ValueError("'parents' must be a list of ints")
    return TreeTopology(tuple(data["parents"])), metadata
