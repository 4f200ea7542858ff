"""The peer of the verifier benchmark: drawing and verifying as one would write it first.

Probabilities of every row up front, children drawn row by row, the walk in Python with each number
read on the host, a fresh residual row per rejected child. Written for comparison only: same laws as
``rrs`` and ``rrs_wor`` at token level, nothing else in the repository uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tree_builder.topology import TreeTopology

RULES = ("rrs", "rrs_wor")


class PeerStep(NamedTuple):
    """The accepted nodes, root first, and the token drawn after them."""

    path: list[int]
    bonus: int


class Peer:
    """One step at a time over given logits. ``replacement``: rrs, else rrs_wor."""

    def __init__(self, topology: TreeTopology, replacement: bool, temperature: float) -> None:
        self.topology = topology
        self.replacement = replacement
        self.temperature = temperature

    def draw(self, draft_logits: Tensor, generator: torch.Generator) -> tuple[Tensor, list[int]]:
        """draft_logits [E, V] -> draft probabilities [E, V] and the token of every node."""
        tree = self.topology
        q = torch.softmax(draft_logits / self.temperature, dim=-1)
        tokens = [0] * tree.size
        for row, node in enumerate(tree.inner):
            children = tree.children[node]
            drawn = torch.multinomial(q[row], len(children), self.replacement, generator=generator)
            for child, token in zip(children, drawn.tolist(), strict=True):
                tokens[child] = token
        return q, tokens

    def verify(
        self, target_logits: Tensor, q: Tensor, tokens: list[int], generator: torch.Generator
    ) -> PeerStep:
        """target_logits [m, V], q [E, V], tokens of the m nodes."""
        tree = self.topology
        p = torch.softmax(target_logits / self.temperature, dim=-1)
        row_of = {node: row for row, node in enumerate(tree.inner)}
        path = [0]
        while True:
            node = path[-1]
            residual = p[node]
            proposal = q[row_of[node]].clone() if node in row_of else None
            for child in tree.children[node]:
                assert proposal is not None
                token = tokens[child]
                coin = torch.rand((), generator=generator, device=p.device).item()
                if coin * proposal[token].item() < residual[token].item():
                    path.append(child)
                    break
                residual = torch.relu(residual - proposal)
                residual = residual / residual.sum()
                if not self.replacement:
                    proposal[token] = 0
                    proposal = proposal / proposal.sum()
            else:
                bonus = torch.multinomial(residual, 1, generator=generator).item()
                return PeerStep(path, int(bonus))
