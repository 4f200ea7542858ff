"""What the step benchmark runs: model shapes, trees and contexts, and one case measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from experiments.device_ops import DeviceOps, traced
from experiments.random_pair import llama_config, random_pair
from sequoia import SamplingParams, SpeculativeDecoder
from sequoia.pair import Pair
from sequoia.profiling.clock import Clock
from sequoia.replay import GraphReplay
from tree_builder import TreeTopology, best_tree, expected_tokens, load_tree

ACCEPTANCE = (0.0, 0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.01)  # a typical vector, 1 % left


@dataclass(frozen=True)
class Preset:
    """Shapes of two models, and what they are run on."""

    target: dict[str, Any]
    draft: dict[str, Any]
    trees: tuple[str, ...]
    contexts: tuple[int, ...]
    dtype: str

    def configs(self) -> tuple[Any, Any]:
        longest = max(self.contexts) + max(tree_of(tree).size for tree in self.trees) + 64
        room = {"max_position_embeddings": -(-longest // 64) * 64}
        return llama_config(**self.target, **room), llama_config(**self.draft, **room)


def sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, **more: Any
) -> dict[str, Any]:
    """A Llama config's sizes under its own names."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


TREES = ("chain:5", "best:64", "best:128", "best:512")
CONTEXTS = (128, 1024, 4096)
PRESETS = {
    "tiny": Preset(
        sizes(512, 64, 128, 2, 4, 2),
        sizes(512, 32, 64, 1, 2, 2),
        ("chain:5", "best:64"),
        (64, 128),
        "float32",
    ),
    "7b-68m": Preset(
        sizes(32000, 4096, 11008, 32, 32, 32),
        sizes(32000, 768, 3072, 2, 12, 12),
        TREES,
        CONTEXTS,
        "float16",
    ),
    "8b-1b": Preset(
        sizes(128256, 4096, 14336, 32, 32, 8),
        sizes(128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True),
        TREES,
        CONTEXTS,
        "bfloat16",
    ),
}


def tree_of(spec: str) -> TreeTopology:
    """`best:N`: the best tree of N nodes for the typical acceptance; else as everywhere."""
    kind, _, size = spec.partition(":")
    return best_tree(ACCEPTANCE, int(size))[0] if kind == "best" else load_tree(spec)


PARAMS = SamplingParams(temperature=1.0, seed=0)


@dataclass(frozen=True)
class Case:
    """One tree at one context length."""

    tree: str
    context: int
    verifier: str = "rrs_wor"


class Bench:
    """Measures cases of one pair; phases and whole steps, eager and (on CUDA) captured."""

    def __init__(self, pair: Pair, attention: str, clock: Clock, ceiling: float) -> None:
        self.pair, self.attention, self.clock, self.ceiling = pair, attention, clock, ceiling

    def measure(self, case: Case) -> dict[str, Any]:
        """All figures of a case, JSON-ready. Times in milliseconds."""
        tree = tree_of(case.tree)
        length = case.context + tree.num_levels + 1
        decoder = SpeculativeDecoder(
            self.pair, tree, case.verifier, length, attention=self.attention
        )
        ids = [(7 * i) % self.pair.vocab_size for i in range(case.context)]
        decoder.begin(ids, PARAMS, self)
        key, step = decoder.step(PARAMS, tree.num_levels)
        needed = case.context - 1 + tree.size
        bucket = min(decoder.replay.bucket(needed), decoder.target.cache.slots)
        step.prepare(bucket)
        captures = isinstance(decoder.replay, GraphReplay)

        def fresh() -> None:
            step.n.fill_(case.context)
            step.state.uniforms.uniform_(generator=decoder.generator)

        def timed(call: Callable[[], Any], capture: bool = False) -> float:
            return self.clock(call, decoder.device, capture, fresh).median_ms

        def eager_step() -> None:
            step.run(bucket)
            step.result()

        def replayed_step() -> None:
            decoder.replay.run(key, step, bucket)
            step.result()

        with torch.inference_mode():
            fresh()
            grown = step.grow(bucket)
            logits = step.score(grown, bucket)
            verdict = step.verify(grown, logits)
            phases = {
                "draft": lambda: step.grow(bucket),
                "target": lambda: step.score(grown, bucket),
                "verify": lambda: step.verify(grown, logits),
                "commit": lambda: step.commit(grown, verdict),
            }
            eager = {name: timed(call) for name, call in phases.items()}
            eager["step"] = timed(eager_step)
            captured = {}
            if captures:
                captured = {name: timed(call, True) for name, call in phases.items()}
                fresh()
                replayed_step()  # the first one is eager
                captured["step"] = timed(replayed_step)
            fresh()
            step.prepare(bucket)
            with traced(decoder.device) as ops:
                eager_step()
        if decoder.device.type == "cpu":  # the walk reads the host freely there: show the other
            ops = device_ops(self.pair, case, bucket)
        return self._report(case, tree, bucket, eager, captured, ops)

    def _report(
        self,
        case: Case,
        tree: TreeTopology,
        bucket: int,
        eager: dict[str, float],
        captured: dict[str, float],
        ops: DeviceOps,
    ) -> dict[str, Any]:
        times = captured or eager
        weights, draft_weights = weight_bytes(self.pair.target), weight_bytes(self.pair.draft)
        read_ms = 1000 * weights / self.ceiling
        draft_ms = 1000 * draft_weights / self.ceiling * (tree.num_levels - 1)
        keys_values = 2 * bucket * kv_bytes(self.pair.target)
        tokens = expected_tokens(tree, ACCEPTANCE)
        return {
            "tree": case.tree,
            "nodes": tree.size,
            "levels": tree.num_levels,
            "context": case.context,
            "bucket": bucket,
            "verifier": case.verifier,
            "eager_ms": eager,
            "captured_ms": captured,
            "launches_per_step": ops.num_launches,
            "host_syncs_per_step": len(ops.reads),
            "host_copies_per_step": len(ops.copies),
            "target_bytes_per_second": (weights + keys_values) / times["target"] * 1000,
            "tokens_per_step": tokens,
            "tokens_per_second": 1000 * tokens / times["step"],
            "ratios": {
                "target_pass_to_one_read_of_weights": times["target"] / read_ms,
                "step_to_all_reads_of_weights": times["step"] / (read_ms + draft_ms),
                "eager_to_captured_step": eager["step"] / captured["step"] if captured else None,
            },
        }


def device_ops(pair: Pair, case: Case, bucket: int) -> DeviceOps:
    """What this step would do on a device that is not the host, counted on meta."""
    shadow = random_pair(pair.target.config, pair.draft.config, pair.target.compute_dtype, "meta")
    tree = tree_of(case.tree)
    decoder = SpeculativeDecoder(shadow, tree, case.verifier, case.context + tree.num_levels + 1)
    step = decoder.step(PARAMS, tree.num_levels)[1]
    with traced("meta") as ops:
        step.run(bucket)
    ops.reads.append("the result")
    return ops


def weight_bytes(model: Any) -> int:
    """Bytes that a pass of a few tokens reads: every matrix once, of the embeddings a few rows."""
    embedded = model.model.embed_tokens.weight.untyped_storage()
    head = model.lm_head.weight.untyped_storage()
    storages = {s.data_ptr(): s for s in (p.untyped_storage() for p in model.parameters())}
    if embedded.data_ptr() != head.data_ptr():
        storages.pop(embedded.data_ptr())
    return sum(storage.nbytes() for storage in storages.values())


def kv_bytes(model: Any) -> int:
    """Bytes of the keys (or values) of one slot in all layers."""
    dims = model.dims
    return dims.layers * dims.kv_heads * dims.head_dim * model.compute_dtype.itemsize


def copy_ceiling(device: torch.device, clock: Clock) -> float:
    """Bytes per second of memory traffic in a large copy: each byte is read and written."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    milliseconds = clock(lambda: target.copy_(source), device).median_ms
    return 2 * size / milliseconds * 1000
