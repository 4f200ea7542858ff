"""Checks of the captured step on a GPU: right, reusable, in every dtype, without leaks.

    python -m experiments.gpu_checks [--device cuda]

Needs neither pytest nor a network: the models are small, random and made on the device. The same
checks are the tests marked `gpu` (tests/sequoia/test_gpu.py). Prints a line per check and ends
with exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

import torch

import verifiers
from experiments.random_pair import llama_config, near_pair
from sequoia import AutoregressiveDecoder, SamplingParams, SpeculativeDecoder
from sequoia.pair import Pair
from sequoia.replay import EagerReplay, GraphReplay

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
VOCAB = 2000
REQUESTS = [  # prompt length, request
    (40, SamplingParams(max_new_tokens=60, seed=1)),
    (3, SamplingParams(max_new_tokens=40, seed=2, temperature=0.4)),
    (200, SamplingParams(max_new_tokens=60, seed=3, temperature=1.5, top_p=0.8)),
    (1, SamplingParams(max_new_tokens=80, seed=4, top_k=20, top_p=0.9)),
    (40, SamplingParams(max_new_tokens=60, seed=1)),
]


def make_pair(dtype: torch.dtype, device: str) -> Pair:
    """A peaked target and a draft near it, large enough for fused attention (head_dim 64)."""
    config = llama_config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    return near_pair(config, dtype, device)


def prompt(length: int) -> list[int]:
    return [(37 * i + length) % VOCAB for i in range(length)]


def decoders(
    pair: Pair, verifier: str, tree: str = "kary:2^4"
) -> tuple[SpeculativeDecoder, SpeculativeDecoder]:
    """One that captures and one that does not, with the same buckets: the same arithmetic."""
    captured = SpeculativeDecoder(pair, tree, verifier, 512)
    eager = SpeculativeDecoder(pair, tree, verifier, 512, graphs=False)
    assert isinstance(eager.replay, EagerReplay)
    if pair.target.layer_devices[0].type == "cuda":
        assert isinstance(captured.replay, GraphReplay), captured.replay.description
    eager.replay.bucket = captured.replay.bucket  # type: ignore[method-assign]
    return captured, eager


def captured_equals_eager(device: str, verifier: str, dtype: str, tree: str = "kary:2^4") -> None:
    """The same tokens for every request, on one captured decoder."""
    captured, eager = decoders(make_pair(DTYPES[dtype], device), verifier, tree)
    for length, params in REQUESTS:
        if verifier == "greedy":
            params = SamplingParams(max_new_tokens=params.max_new_tokens, temperature=0)
        expected = eager.generate(prompt(length), params)
        output = captured.generate(prompt(length), params)
        same("captured", output.token_ids, "eager", expected.token_ids)


def greedy_is_autoregressive(device: str) -> None:
    """At temperature 0 in fp32 the captured text is plain decoding's."""
    pair = make_pair(torch.float32, device)
    captured, _ = decoders(pair, "rrs_wor")
    params = SamplingParams(max_new_tokens=120, temperature=0)
    plain = AutoregressiveDecoder(pair, 512, graphs=False).generate(prompt(30), params)
    output = captured.generate(prompt(30), params)
    same("captured", output.token_ids, "autoregressive", plain.token_ids)
    assert output.num_steps < len(output.token_ids), "no drafted token was ever accepted"


def step_never_synchronises(device: str, tokens: int = 200) -> None:
    """CUDA's own check: nothing between two result reads waits for the device."""
    captured, _ = decoders(make_pair(torch.float16, device), "rrs_wor")
    params = SamplingParams(max_new_tokens=tokens, seed=1)
    for _ in captured.stream(prompt(60), params):  # capture what will be needed
        pass
    captured.begin(prompt(60), params, None)
    key, step = captured.step(params, 100)
    bucket = captured.replay.bucket(60 + step.growth.size)
    for _ in range(3):
        captured.replay.run(key, step, bucket)
        step.result()
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        captured.state.uniforms.uniform_(generator=captured.generator)
        captured.replay.run(key, step, bucket)
        step.run(bucket)  # eagerly too
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def memory_is_stable(device: str, steps: int = 500, tokens: int = 400) -> None:
    """Once every bucket has been reached, no step takes memory."""
    captured, _ = decoders(make_pair(torch.float16, device), "rrs_wor")
    params = SamplingParams(max_new_tokens=tokens, seed=1)

    def generate() -> int:
        return sum(1 for _ in captured.stream(prompt(20), params))

    for _ in range(3):
        generate()
    before = used(device)
    done = 0
    while done < steps:
        done += generate()
    assert used(device) <= before + 2**20, f"{used(device) - before} bytes more after {done} steps"


def used(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def same(name: str, tokens: list[int], other: str, expected: list[int]) -> None:
    if tokens != expected:
        pairs = zip(tokens, expected, strict=False)
        at = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), -1)
        raise AssertionError(f"{name} and {other} differ from token {at} of {len(expected)} on")


def checks() -> dict[str, Callable[[str], None]]:
    """Name -> check, each called with a device."""
    found: dict[str, Callable[[str], None]] = {}
    for name in verifiers.NAMES:
        tree = "chains:2x3" if "spechub" in name else "kary:2^4"
        found[f"captured = eager, {name}, fp32"] = partial(
            captured_equals_eager, verifier=name, dtype="fp32", tree=tree
        )
    for dtype in ("fp16", "bf16"):
        found[f"captured = eager, rrs_wor, {dtype}"] = partial(
            captured_equals_eager, verifier="rrs_wor", dtype=dtype
        )
    found["captured = eager, adaptive tree, bf16"] = partial(
        captured_equals_eager, verifier="rrs_wor", dtype="bf16", tree="adaptive:2x3x4"
    )
    found["greedy = autoregressive, fp32"] = greedy_is_autoregressive
    found["no synchronisation in a step"] = step_never_synchronises
    found["memory stable over 500 steps"] = memory_is_stable
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    failed = 0
    for name, check in checks().items():
        start = time.perf_counter()
        try:
            check(device)
            outcome = "ok"
        except Exception as error:
            traceback.print_exc()
            failed += 1
            outcome = f"FAILED: {error}".splitlines()[0]
        print(f"{name:48} {time.perf_counter() - start:6.1f} s  {outcome}", flush=True)
    print(f"{failed} of {len(checks())} checks failed on {device}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
