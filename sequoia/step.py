"""One speculative step on static buffers: draft, target, verify, commit.

Given a topology and a cache-length bucket every shape here is constant; ``n``, temperature and
top_p are device scalars, the randomness is a buffer filled before the step, and nothing reads a
device value on the host. So the same code runs eagerly and as one captured CUDA graph. The host
reads ``SequenceState.output`` once, after the step.

Invariants between steps (``n`` = known tokens, prompt included):
the target's cache holds slots ``0..n-2``; the draft's is right up to slot ``n-3`` at least (the
last two known tokens are fed again, so an accepted leaf needs no pass of its own).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from model_fi import causal_mask, tree_mask
from sequoia.rows import JoinedRows
from tree_builder.grow import Grown, Growth
from verifiers.base import Uniforms, Verdict
from verifiers.probs import DeferredRows, Rows, Sampling, make_rows


class SequenceState:
    """The device buffers of one sequence. Addresses never change, so graphs can be replayed."""

    def __init__(self, capacity: int, num_uniforms: int, num_levels: int, device: Any) -> None:
        self.tokens = torch.zeros(capacity, dtype=torch.long, device=device)
        self.n = torch.zeros((), dtype=torch.long, device=device)
        self.temperature = torch.ones((), device=device)
        self.top_p = torch.ones((), device=device)
        self.uniforms = torch.zeros(num_uniforms, dtype=torch.float64, device=device)
        self.output = torch.zeros(2 + 2 * num_levels, dtype=torch.long, device=device)

    def sampling(self, *, greedy: bool, top_k: int, use_top_p: bool) -> Sampling:
        """The host-known choices; temperature and top_p stay device scalars."""
        return Sampling(self.temperature, self.top_p if use_top_p else None, top_k, greedy)


class Made(NamedTuple):
    """The tensors an observed run leaves: the same addresses whenever a captured run is replayed.

    They hold until the next step, of this object or another: captured steps share their memory.
    """

    grown: Grown
    target_logits: Tensor  # [m, V]
    verdict: Verdict


class StepResult(NamedTuple):
    """What one step did, on the host."""

    fault: int  # 0, or 1 + the node whose row was no distribution
    num_accepted: int
    path: list[int]  # accepted nodes, the root (0) first
    emitted: list[int]  # accepted tokens, then the bonus


class Step:
    """The four phases for one growth, verifier and choice of filters.

    ``draft`` may be None where the tree is the root alone: then the step is autoregressive.
    ``observed``: keep the tensors of each run in ``made``. They are the large ones (rows of the
    whole vocabulary for every node), so a step that nobody looks into lets them go.
    """

    def __init__(
        self,
        target: Any,
        draft: Any | None,
        growth: Growth,
        verifier: Any,
        state: SequenceState,
        sampling: Sampling,
        vocab_size: int,
        observed: bool = False,
    ) -> None:
        self.target, self.draft, self.growth = target, draft, growth
        self.verifier, self.state, self.sampling = verifier, state, sampling
        self.vocab_size = vocab_size
        self.observed = observed
        self.made: Made | None = None
        shape = (growth.num_rows, growth.max_children, growth.size)
        self.uniforms = Uniforms.view(state.uniforms[: Uniforms.num(*shape)], *shape)
        device = state.tokens.device
        self._nodes = torch.arange(growth.size, device=device)
        self._ahead = torch.arange(growth.num_levels, device=device)
        self._second = torch.ones(1, dtype=torch.long, device=device)
        self._back = torch.tensor([-2, -1], device=device)

    @property
    def n(self) -> Tensor:
        return self.state.n

    def prepare(self, bucket: int) -> None:
        """What the host must do before runs with this bucket, and before their capture."""
        self.target.plan(self.growth.size, bucket)

    @torch.inference_mode()
    def run(self, bucket: int) -> None:
        """One step over the first ``bucket`` slots of both caches; leaves its result in output."""
        grown = self.grow(bucket)
        logits = self.score(grown, bucket)
        verdict = self.verify(grown, logits)
        self.commit(grown, verdict)
        if self.observed:
            self.made = Made(grown, logits, verdict)

    def grow(self, bucket: int) -> Grown:
        """DRAFT: feed the draft what it has not seen, then grow the tree level by level."""
        state = self.state
        root = state.tokens.index_select(0, (state.n - 1).view(1))
        rows = None if self.draft is None else self._root_rows(self.draft, bucket)

        def forward(token_ids: Tensor, nodes: Tensor, depth: Tensor, ancestors: Tensor) -> Rows:
            assert self.draft is not None
            last, mask = state.n - 1, tree_mask(state.n, ancestors, bucket)
            return self._rows(self.draft.forward(token_ids, last + depth, last + nodes, mask))

        return self.growth.grow(root, rows, forward, self.verifier, self.uniforms.draw)

    def score(self, grown: Grown, bucket: int) -> Tensor:
        """TARGET: one pass over all nodes -> logits [m, V]."""
        tree, n = grown.tree, self.state.n
        logits = self.target.forward(
            grown.tokens, n - 1 + tree.depth, n - 1 + self._nodes, tree_mask(n, tree.mask, bucket)
        )
        return logits[:, : self.vocab_size]

    def verify(self, grown: Grown, logits: Tensor) -> Verdict:
        """VERIFY: accept a path and draw the bonus."""
        target_rows, draft_rows = self.rows(grown, logits)
        return self.verifier.verify(
            grown.tree, grown.drafted, target_rows, draft_rows, self.uniforms
        )

    def rows(self, grown: Grown, logits: Tensor) -> tuple[DeferredRows, JoinedRows | None]:
        """Target rows [m] and draft rows [E] after temperature and filters, computed on demand.

        A tree of one node has no draft rows: None.
        """
        drafted = JoinedRows(grown.draft_rows) if grown.draft_rows else None
        return DeferredRows(logits, self.sampling), drafted

    def commit(self, grown: Grown, verdict: Verdict) -> None:
        """COMMIT: keep the path's rows in both caches, append what was emitted."""
        state = self.state
        if self.growth.num_levels > 1:
            # Compaction comes before the bonus takes a slot: writing it first loses a token.
            source = state.n - 1 + verdict.path[1:]
            assert self.draft is not None
            for runner in (self.target, self.draft):
                runner.cache.compact(source, state.n)
        following = grown.tokens[verdict.path.roll(-1)]
        emitted = torch.where(self._ahead < verdict.num_accepted, following, verdict.bonus)
        state.tokens.index_copy_(0, state.n + self._ahead, emitted)
        state.n += verdict.num_accepted + 1
        scalars = torch.stack([verdict.fault, verdict.num_accepted])
        packed = torch.cat([scalars, verdict.path, emitted])
        state.output[: packed.shape[0]].copy_(packed)

    def result(self) -> StepResult:
        """The one host synchronisation of a step."""
        levels = self.growth.num_levels
        values = self.state.output[: 2 + 2 * levels].tolist()
        fault, accepted = values[:2]
        path, emitted = values[2 : 2 + levels], values[2 + levels :]
        return StepResult(fault, accepted, path[: accepted + 1], emitted[: accepted + 1])

    def _root_rows(self, draft: Any, bucket: int) -> Rows:
        """Feed the last two known tokens; the second one's row is the root's.

        With a 1-token prompt both are that token, written to slot 0 twice with the same values.
        """
        positions = (self.state.n + self._back).clamp(min=0)
        token_ids = self.state.tokens.index_select(0, positions)
        mask = causal_mask(positions, bucket)
        return self._rows(draft.forward(token_ids, positions, positions, mask, rows=self._second))

    def _rows(self, logits: Tensor) -> Rows:
        return make_rows(logits[:, : self.vocab_size], self.sampling)
