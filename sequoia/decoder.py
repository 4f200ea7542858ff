"""The speculative decoder: prompt in, exactly the target's text out, several tokens a step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from model_fi import EagerRunner
from sequoia.config import SamplingParams
from sequoia.inputs import (
    check_depth,
    check_max_length,
    effective_verifier,
    encode_prompt,
    fresh_seed,
    resolve_tree,
    resolve_verifier,
    stop_tokens,
    verifier_label,
)
from sequoia.memory import check_tree_memory
from sequoia.outputs import GenerationOutput, Observer, StepRecord
from sequoia.pair import Pair
from sequoia.replay import BUCKET, choose_replay
from sequoia.step import SequenceState, Step, StepResult
from sequoia.stopping import StopWatch
from tree_builder.adaptive import Tree, make_growth
from verifiers.base import Uniforms

COLDEST = 1e-30  # below, logits / temperature overflows fp32; at it, all but ties is argmax


class SpeculativeDecoder:
    """Decode with a drafted tree; the text has exactly the target's distribution.

    ``tree``: a spec (``chain:5``, ``kary:2^3``, ``chains:4x8``, ``adaptive:2x4x5``), a file, a
    ``TreeTopology``, an ``AdaptiveTree`` or ``auto``. ``verifier``: a name of ``verifiers.NAMES``
    or an object of the protocol; whether it can take the tree is checked here. ``max_length``:
    tokens of prompt and answer together, at most what both models can take (the default).
    ``graphs``: capture the step as a CUDA graph where that is possible (``.replay.description``
    says what was done). ``attention``: the target's, ``auto``, ``sdpa`` or ``flashinfer``.

    A decoder owns its caches and serves one generation at a time.
    """

    def __init__(
        self,
        pair: Pair,
        tree: str | Tree = "auto",
        verifier: Any = "rrs_wor",
        max_length: int | None = None,
        graphs: bool = True,
        attention: str = "auto",
    ) -> None:
        self.pair = pair
        self.tree_name, self.tree = resolve_tree(tree, pair)
        check_depth(self.tree, pair)
        self.verifier = resolve_verifier(verifier, self.tree)
        # Near the end of a text a tree of so many levels only: nothing is drafted in vain.
        self.shrunk = [self.tree.truncate(1 + level) for level in range(self.tree.num_levels)]
        self.max_length = check_max_length(max_length, pair)
        slots = -(-(self.max_length + self.tree.size) // BUCKET) * BUCKET
        self.target = EagerRunner(pair.target, slots, attention)
        self.draft: EagerRunner | None = None
        if self.tree.size > 1:
            if pair.draft is None:
                raise ValueError(
                    "the pair has no draft model: load one, or use AutoregressiveDecoder"
                )
            self.draft = EagerRunner(pair.draft, slots)
        self.device = self.target.device
        self._runners = [runner for runner in (self.target, self.draft) if runner is not None]
        self.replay = choose_replay([runner.model for runner in self._runners], graphs)
        check_tree_memory(self.tree.size, pair.vocab_size, self.device)
        self.state = self._new_state(slots)
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._running: object | None = None

    # ------------------------------------------------------------------ public calls

    def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        streamer: Any = None,
        observer: Observer | None = None,
    ) -> GenerationOutput:
        """Generate to the end. ``prompt``: text, a list of ids, or a [n] or [1, n] tensor.

        ``streamer`` is one of transformers' (``put``, ``end``). A KeyboardInterrupt ends the
        generation and returns what is there, with finish reason "interrupt".
        """
        run = self.start(prompt, params, observer)

        def show(token_ids: list[int]) -> None:
            if streamer is not None and token_ids:
                streamer.put(torch.tensor(token_ids))

        if streamer is not None:
            streamer.put(torch.tensor([run.prompt_ids]))
        try:
            for _ in run:
                show(run.watch.release())
        except KeyboardInterrupt:
            run.interrupt()
            show(run.watch.release())
        if streamer is not None:
            streamer.end()
        return run.output()

    def stream(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        observer: Observer | None = None,
    ) -> Iterator[list[int]]:
        """Iterate over the token ids kept from each step."""
        return iter(self.start(prompt, params, observer))

    def start(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        observer: Observer | None = None,
    ) -> Generation:
        """Check everything about a request, and return it as an iterable, not yet begun."""
        params = params or SamplingParams()
        ids = encode_prompt(prompt, self.pair, self.max_length)
        if not params.greedy and getattr(self.verifier, "name", "") == "greedy":
            raise ValueError(
                f"the greedy verifier decodes at temperature 0 only, got {params.temperature}: "
                "choose another verifier or temperature=0"
            )
        return Generation(self, ids, params, observer)

    # ------------------------------------------------------------------ used by Generation

    def begin(self, ids: list[int], params: SamplingParams, owner: object) -> int:
        """Reset caches and buffers for a prompt and run it, all but its last token."""
        self._running = owner
        state, device = self.state, self.device
        seed = params.seed if params.seed is not None else fresh_seed()
        self.generator.manual_seed(seed)
        prompt = torch.tensor(ids, device=device)
        state.tokens[: len(ids)] = prompt
        state.n.fill_(len(ids))
        state.temperature.fill_(1.0 if params.greedy else max(params.temperature, COLDEST))
        state.top_p.fill_(params.top_p)
        if len(ids) > 1:
            for runner in self._runners:  # what an earlier text left in the slots is never read
                runner.prefill(prompt[:-1])
        return seed

    def advance(self, n: int, remaining: int, run: Generation) -> tuple[Step, StepResult]:
        """One step from ``n`` known tokens, at most ``remaining`` of its tokens being of use."""
        if run is not self._running:
            raise RuntimeError(
                "this generation was abandoned: the decoder has begun another one since "
                "(one generation at a time; use a second decoder on the same pair)"
            )
        key, step = self.step(run.params, remaining, observed=run.observer is not None)
        self.state.uniforms.uniform_(generator=self.generator)
        bucket = min(self.replay.bucket(n - 1 + step.growth.size), self.target.cache.slots)
        step.prepare(bucket)
        self.replay.run(key, step, bucket)
        result = step.result()
        if result.fault:
            for runner in self._runners:  # a NaN in a masked slot would still spread
                runner.cache.reset()
            raise ValueError(
                f"node {result.fault - 1} of the tree has a row that is no distribution "
                "(NaN, negative or without mass): the models' logits are broken"
            )
        return step, result

    # ------------------------------------------------------------------ parts

    @cached_property
    def generator(self) -> torch.Generator:
        """The source of all uniforms (made when first used: the meta device has none)."""
        return torch.Generator(device=self.device)

    def step(
        self, params: SamplingParams, remaining: int, observed: bool = False
    ) -> tuple[tuple[Any, ...], Step]:
        """The step for what is left to generate, and its key.

        Near the end the tree loses its lower levels. The key names all that the kernels of the
        step depend on, but for the bucket.
        """
        tree = self.shrunk[min(remaining, self.tree.num_levels) - 1]
        key = (tree, params.greedy, params.top_k, params.top_p < 1, observed)
        if key not in self._steps:
            greedy, top_k, use_top_p = key[1:4]
            self._steps[key] = Step(
                self.target,
                self.draft if tree.size > 1 else None,
                make_growth(tree, self.device),
                effective_verifier(self.verifier, tree, greedy),
                self.state,
                self.state.sampling(greedy=greedy, top_k=top_k, use_top_p=use_top_p),
                self.pair.vocab_size,
                observed,
            )
        return key, self._steps[key]

    def _new_state(self, slots: int) -> SequenceState:
        tree = self.tree
        uniforms = Uniforms.num(tree.num_rows, tree.max_children, tree.size)
        return SequenceState(slots + tree.num_levels, uniforms, tree.num_levels, self.device)


class Generation:
    """One request on one decoder: iterate to run it, then ask for its output."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        prompt_ids: list[int],
        params: SamplingParams,
        observer: Observer | None,
    ) -> None:
        self.decoder, self.prompt_ids = decoder, prompt_ids
        self.params, self.observer = params, observer
        stop_ids = params.stop_token_ids
        stop_ids = decoder.pair.stop_token_ids if stop_ids is None else stop_ids
        self.watch = StopWatch(
            decoder.pair.tokenizer,
            min(params.max_new_tokens, decoder.max_length - len(prompt_ids)),
            (*stop_ids, *stop_tokens(params.stop, decoder.pair.tokenizer)),
            params.stop,
        )
        self.accepted_per_step: list[int] = []
        self.seed = params.seed

    def __iter__(self) -> Iterator[list[int]]:
        decoder, watch = self.decoder, self.watch
        if self.accepted_per_step:
            raise RuntimeError("this generation has already run: start another one")
        self.seed = decoder.begin(self.prompt_ids, self.params, self)
        while watch.finish_reason is None:
            n = len(self.prompt_ids) + len(watch.token_ids)
            remaining = watch.max_new_tokens - len(watch.token_ids)
            step, result = decoder.advance(n, remaining, self)
            kept = watch.push(result.emitted)
            self.accepted_per_step.append(min(result.num_accepted, len(kept)))
            if self.observer is not None:
                self.observer(self._record(step, result))
            yield kept

    @staticmethod
    def _record(step: Step, result: StepResult) -> StepRecord:
        assert step.made is not None
        grown, logits, _ = step.made
        target_rows, draft_rows = step.rows(grown, logits)
        return StepRecord(
            tree=grown.tree,
            tokens=grown.tokens,
            target_rows=target_rows,
            draft_rows=draft_rows,
            path=result.path,
            emitted=result.emitted,
        )

    def interrupt(self) -> None:
        """End here; what was held back in case it became a stop string may be shown now."""
        self.watch.finish_reason = "interrupt"

    def text(self) -> str:
        """The text that may be shown so far (see ``StopWatch.text``)."""
        return self.watch.text(final=self.watch.finish_reason is not None)

    def output(self) -> GenerationOutput:
        decoder = self.decoder
        return GenerationOutput(
            token_ids=list(self.watch.token_ids),
            text=self.watch.text(final=True),
            finish_reason=self.watch.finish_reason or "interrupt",
            num_prompt_tokens=len(self.prompt_ids),
            accepted_per_step=list(self.accepted_per_step),
            verifier=verifier_label(decoder.verifier, self.params.greedy),
            tree=decoder.tree_name,
            seed=self.seed if self.seed is not None else -1,
        )
