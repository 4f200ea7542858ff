"""Latency curves of a pair on this machine: the engine's own phases, timed from outside.

A tree of m nodes is grown once behind a text; then its target pass, verification and commit are
timed one by one, by calling the phases of :class:`sequoia.step.Step`. A draft pass is timed as one
level of m nodes, drawing two children for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

import verifiers
from model_fi import EagerRunner, tree_mask
from sequoia.config import SamplingParams
from sequoia.inputs import effective_verifier
from sequoia.pair import Pair
from sequoia.profiling.clock import Clock, Timing
from sequoia.profiling.journal import Journal
from sequoia.provenance import collect
from sequoia.replay import BUCKET, GraphReplay, choose_replay
from sequoia.step import SequenceState, Step
from tree_builder import LatencyCurve, LatencyCurves, TreeTopology, best_tree
from tree_builder.grow import StaticGrowth
from tree_builder.latency import LatencyPoint
from verifiers.base import Uniforms
from verifiers.probs import make_rows

CHILDREN = 2  # per node of the trees that are timed: every rule takes as many
TYPICAL = (0.0, 0.7, 0.2)  # acceptance that the shapes of these trees are best for
BEND = 0.05  # a point this far off the line between its neighbours is a bend: look closer
CLOSEST = 1.3  # ratio of token counts below which no point is put between


@dataclass(frozen=True)
class LatencySettings:
    """What is timed.

    max_tokens  largest pass (1024 covers every tree in use; a CPU wants less)
    contexts    tokens known before the tree
    rules       whose verification is timed
    """

    max_tokens: int = 1024
    contexts: tuple[int, ...] = (128, 512, 1024)
    rules: tuple[str, ...] = ("rrs_wor",)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not self.contexts or min(self.contexts) < 2:
            raise ValueError(f"contexts must be at least 2 tokens, got {self.contexts}")
        for rule in self.rules:
            verifiers.make(rule)


def measure_latency(
    pair: Pair,
    text: Sequence[int],
    params: SamplingParams,
    settings: LatencySettings,
    journal: Journal,
    done: Callable[[str], None] = lambda what: None,
) -> LatencyCurves:
    """Time everything a step is made of; ``done`` is told of every point.

    ``text`` fills the contexts, repeated as often as needed. ValueError for a pair without a
    draft, no text, and contexts that do not fit the models together with the largest tree.
    """
    if pair.draft is None:
        raise ValueError("latency curves need a draft model: this pair has none")
    if not text:
        raise ValueError("no text to fill the contexts with")
    longest = max(settings.contexts) + settings.max_tokens
    if longest > pair.max_length:
        raise ValueError(
            f"context {max(settings.contexts)} and a tree of {settings.max_tokens} nodes: the "
            f"models take {pair.max_length} tokens together"
        )
    bench = _Bench(pair, longest, text, params, settings)
    points: dict[str, list[LatencyPoint]] = {}
    for context in settings.contexts:
        bench.begin(context)

        def measure(tokens: int, context: int = context) -> dict[str, Timing]:
            key = f"latency {context} {tokens}"
            if key not in journal:
                journal.add(key, bench.measure(tokens))
            done(f"context {context}, {tokens} tokens")
            return {name: Timing(*timing) for name, timing in journal[key].items()}

        for tokens, timings in refined(measure, settings.max_tokens).items():
            for name, timing in timings.items():
                points.setdefault(name, []).append(LatencyPoint(context, tokens, *timing))
    curves = {name: LatencyCurve(tuple(found)) for name, found in points.items()}
    machine = collect(
        device=bench.device,
        dtype=pair.target.compute_dtype,
        target=pair.target_name,
        draft=pair.draft_name,
        captured=bench.capture,
        clock=asdict(settings.clock),
    )
    rules = {rule: curves[f"verify {rule}"] for rule in bench.rules}
    return LatencyCurves(curves["target"], curves["draft"], rules, curves["commit"], machine)


def refined(
    measure: Callable[[int], dict[str, Timing]], max_tokens: int
) -> dict[int, dict[str, Timing]]:
    """Powers of two up to ``max_tokens``, and points between where a model's curve bends."""
    counts = [1 << power for power in range(max_tokens.bit_length())]
    if counts[-1] != max_tokens:
        counts.append(max_tokens)
    found = {tokens: measure(tokens) for tokens in counts}

    def refine(low: int, high: int) -> None:
        middle = (low + high) // 2
        if high <= CLOSEST * low or middle in (low, high):
            return
        found[middle] = measure(middle)
        if any(_bends(found, name, low, middle, high) for name in ("target", "draft")):
            refine(low, middle)
            refine(middle, high)

    for low, high in itertools.pairwise(counts):
        refine(low, high)
    return dict(sorted(found.items()))


def _bends(
    found: dict[int, dict[str, Timing]], name: str, low: int, middle: int, high: int
) -> bool:
    at = {tokens: found[tokens][name].median_ms for tokens in (low, middle, high)}
    share = (middle - low) / (high - low)
    line = at[low] + share * (at[high] - at[low])
    return abs(at[middle] - line) > BEND * line


class _Bench:
    """Both models behind a text, and the steps that are timed."""

    def __init__(
        self,
        pair: Pair,
        longest: int,
        text: Sequence[int],
        params: SamplingParams,
        settings: LatencySettings,
    ) -> None:
        slots = -(-longest // BUCKET) * BUCKET
        draft: Any = pair.draft
        self.target, self.draft = EagerRunner(pair.target, slots), EagerRunner(draft, slots)
        self.device, self.vocab_size = self.target.device, pair.vocab_size
        self.params, self.clock = params, settings.clock
        repeated = list(text) * (1 + longest // len(text))
        self.text = torch.tensor(repeated[:longest], device=self.device)
        self.replay = choose_replay([pair.target, pair.draft])
        self.capture = isinstance(self.replay, GraphReplay)
        self.rules = ("greedy",) if params.greedy else settings.rules
        self.context = 0

    def begin(self, context: int) -> None:
        """Fill both caches; the last token of the context is the root."""
        self.context = context
        for runner in (self.target, self.draft):
            runner.prefill(self.text[: context - 1])

    def measure(self, tokens: int) -> dict[str, Timing]:
        """Every phase at this number of tokens."""
        tree, _ = best_tree(TYPICAL, tokens)
        found = {"draft": self._draft_pass(tokens)}
        for rule in self.rules:
            timings = self._phases(tree, rule)
            found[f"verify {rule}"] = timings.pop("verify")
            if "target" not in found:
                found |= timings
        return found

    def _phases(self, tree: TreeTopology, rule: str) -> dict[str, Timing]:
        step = self._step(tree, rule)
        bucket = self._bucket(tree.size)
        step.prepare(bucket)
        grown = step.grow(bucket)
        logits = step.score(grown, bucket)
        verdict = step.verify(grown, logits)
        time = partial(self.clock, device=self.device, capture=self.capture)

        def fresh() -> None:
            step.n.fill_(self.context)

        def uniforms() -> None:
            step.state.uniforms.uniform_()

        times = {
            "target": time(lambda: step.score(grown, bucket)),
            "verify": time(lambda: step.verify(grown, logits), before=uniforms),
            "commit": time(lambda: step.commit(grown, verdict), before=fresh),
        }
        fresh()
        return times

    def _draft_pass(self, tokens: int) -> Timing:
        """One level of this many nodes, drawing children for each, as `Step.grow` does."""
        step = self._step(TreeTopology((-1, 0)), self.rules[0])
        bucket = self._bucket(tokens)
        nodes = torch.arange(tokens, device=self.device)
        slots = self.context - 1 + nodes
        seen = torch.eye(tokens, dtype=torch.bool, device=self.device)
        uniforms = torch.rand(tokens, CHILDREN, dtype=torch.float64, device=self.device)
        ids = self.text[slots]

        def level() -> None:
            mask = tree_mask(step.n, seen, bucket)
            logits = self.draft.forward(ids, slots, slots, mask)
            rows = make_rows(logits[:, : self.vocab_size], step.sampling)
            step.verifier.propose(rows, (CHILDREN,) * tokens, uniforms)

        return self.clock(level, self.device, self.capture)

    def _bucket(self, size: int) -> int:
        return min(self.replay.bucket(self.context - 1 + size), self.target.cache.slots)

    def _step(self, tree: TreeTopology, rule: str) -> Step:
        params, growth = self.params, StaticGrowth(tree, self.device)
        num_uniforms = Uniforms.num(growth.num_rows, growth.max_children, growth.size)
        capacity = len(self.text) + growth.num_levels
        state = SequenceState(capacity, num_uniforms, growth.num_levels, self.device)
        state.tokens[: len(self.text)] = self.text
        state.n.fill_(self.context)
        state.temperature.fill_(1.0 if params.greedy else params.temperature)
        state.top_p.fill_(params.top_p)
        state.uniforms.uniform_()
        return Step(
            self.target,
            self.draft if tree.size > 1 else None,
            growth,
            effective_verifier(verifiers.make(rule), tree, params.greedy),
            state,
            state.sampling(greedy=params.greedy, top_k=params.top_k, use_top_p=params.top_p < 1),
            self.vocab_size,
        )
