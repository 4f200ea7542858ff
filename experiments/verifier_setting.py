"""Tables of logits in place of two models, and one step of drawing and verifying over them."""

from __future__ import annotations

from typing import Any

import torch

from sequoia.rows import JoinedRows
from tree_builder.grow import Grown, StaticGrowth
from tree_builder.topology import TreeTopology
from verifiers.base import Uniforms, Verdict
from verifiers.probs import DeferredRows, Rows, Sampling, make_rows

ZIPF, NOISE = 1.8, 0.8  # exponent of the target's law, log-scale error of the draft


class Setting:
    """Logits for one tree and vocabulary, and the sampling they go through."""

    def __init__(
        self,
        topology: TreeTopology,
        vocab: int,
        sampling: Sampling,
        device: torch.device,
        seed: int,
    ) -> None:
        self.topology, self.vocab, self.sampling, self.device = topology, vocab, sampling, device
        self.generator = torch.Generator(device).manual_seed(seed)
        zipf = -ZIPF * torch.arange(1, vocab + 1, device=device).float().log()
        shift = torch.randint(vocab, (topology.size, 1), generator=self.generator, device=device)
        places = torch.arange(vocab, device=device)
        self.target_logits = torch.stack([zipf[(places - s) % vocab] for s in shift])  # [m, V]
        inner = torch.tensor(topology.inner, device=device)
        noise = torch.randn(len(inner), vocab, generator=self.generator, device=device)
        self.draft_logits = self.target_logits[inner] + NOISE * noise  # [E, V]
        self.growth = StaticGrowth(topology, device)
        shape = (self.growth.num_rows, self.growth.max_children, self.growth.size)
        self.flat = torch.zeros(Uniforms.num(*shape), dtype=torch.float64, device=device)
        self.uniforms = Uniforms.view(self.flat, *shape)
        self.root = torch.zeros(1, dtype=torch.long, device=device)

    def fill(self) -> None:
        """All randomness of a step."""
        self.flat.uniform_(generator=self.generator)

    def grow(self, verifier: Any) -> Grown:
        """Draw every child, level by level; the draft's pass is a slice of the table."""
        place = 0

        def next_rows(count: int) -> Rows:
            nonlocal place
            place += count
            return make_rows(self.draft_logits[place - count : place], self.sampling)

        return self.growth.grow(
            self.root,
            next_rows(1),
            lambda tokens, nodes, depth, ancestors: next_rows(len(nodes)),
            verifier,
            self.uniforms.draw,
        )

    def verify(self, verifier: Any, grown: Grown) -> Verdict:
        """The verdict of the grown tree."""
        target = DeferredRows(self.target_logits, self.sampling)
        draft = JoinedRows(grown.draft_rows)
        return verifier.verify(grown.tree, grown.drafted, target, draft, self.uniforms)


def complete_binary(size: int) -> TreeTopology:
    """The first ``size`` nodes, in breadth-first order, of the infinite binary tree."""
    return TreeTopology(tuple((node - 1) // 2 if node else -1 for node in range(size)))
