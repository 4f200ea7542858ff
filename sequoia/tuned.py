"""The file that ``sequoia tune`` writes and ``--tree auto:FILE`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tree_builder import TreeTopology, read_tree, save_tree

FORMAT = "tune-result"
PREFIX = "auto:"  # of a tree's name: auto:FILE


@dataclass(frozen=True)
class Tuned:
    """The tree and the rule chosen for a pair on a machine (one node: no speculation).

    prediction   what was expected of them, and what they were weighed against
    measurement  the same, measured afterwards; None: not measured
    provenance   pair, sampling, machine, commit, command
    """

    tree: TreeTopology
    verifier: str
    prediction: Mapping[str, Any]
    measurement: Mapping[str, Any] | None
    provenance: Mapping[str, Any]

    def save(self, path: str | Path) -> None:
        """A tree file as ``tree_builder`` reads it, with everything else as metadata."""
        about = {name: value for name, value in vars(self).items() if name != "tree"}
        save_tree(self.tree, path, {"format": FORMAT, **about})

    @classmethod
    def load(cls, path: str | Path) -> Tuned:
        """ValueError for a file that is no tune result, naming it."""
        tree, about = read_tree(Path(path))
        whole = isinstance(about.get("verifier"), str)
        whole = whole and isinstance(about.get("provenance") or {}, dict)
        if about.pop("format", None) != FORMAT or not whole:
            raise ValueError(f'{path}: not a result of `sequoia tune` (no "format": "{FORMAT}")')
        return cls(
            tree,
            about["verifier"],
            about.get("prediction") or {},
            about.get("measurement"),
            about.get("provenance") or {},
        )

    def other_models(self, pair: Any) -> list[str]:
        """Names of the models it was tuned for that are not the pair's, by folder or Hub id."""
        names = {"target": pair.target_name, "draft": pair.draft_name}
        tuned_for = {role: self.provenance.get(role) for role in names}
        return [
            f"{role} {tuned_for[role]}"
            for role, name in names.items()
            if name
            and tuned_for[role] is not None
            and Path(str(tuned_for[role])).name != Path(str(name)).name
        ]


def tuned_verifier(tree: Any, tree_file: str | None = None) -> str | None:
    """The verifier that a tree was chosen for: that of ``auto:FILE``, or of the pair's own
    ``tree_file`` for ``auto``; None for any other tree."""
    if isinstance(tree, str) and tree.startswith(PREFIX):
        return Tuned.load(tree.removeprefix(PREFIX)).verifier
    if tree == "auto" and tree_file is not None:
        verifier = read_tree(Path(tree_file))[1].get("verifier")
        return verifier if isinstance(verifier, str) else None
    return None
