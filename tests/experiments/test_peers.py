"""The peers harness: resumable runs, a report of medians, and the same draft for everyone."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.peers import measure, read, report, some_prompts
from experiments.transformers_draft import as_transformers
from model_fi import EagerRunner, causal_mask, load_model
from sequoia.prompts import KINDS


def counting_peer(calls, name):
    def run(ids, params):
        calls.append((name, params.temperature, params.seed))
        return params.max_new_tokens

    return run


def test_runs_are_interleaved_written_as_they_come_and_resumed(tmp_path):
    path, calls = tmp_path / "runs.jsonl", []
    peers = {name: counting_peer(calls, name) for name in ("one", "two")}
    prompts = [("a", [1]), ("b", [2])]
    measure(peers, prompts, [0.0, 0.8], 2, 5, path, {})
    done = read(path)
    assert len(done) == 2 * 2 * 2 * 2
    assert [run["peer"] for run in done[:4]] == ["one", "two", "one", "two"]
    calls.clear()
    measure(peers, prompts, [0.0, 0.8], 2, 5, path, {})
    assert calls == []
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-3]) + '\n{"peer": "tw')  # killed while writing
    measure(peers, prompts, [0.0, 0.8], 2, 5, path, {})
    assert len({json.dumps(run) for run in read(path)}) >= len(done)
    assert len({(r["peer"], r["prompt"], r["temperature"], r["repeat"]) for r in read(path)}) == 16


def test_the_report_takes_medians_over_repeats_then_prompts():
    runs = [
        {"peer": "x", "prompt": prompt, "temperature": 0.0, "new_tokens": 10, "seconds": seconds}
        for prompt, seconds in [("a", 1), ("a", 2), ("a", 100), ("b", 5), ("b", 5), ("c", 1)]
    ]
    assert report(runs) == {"T = 0": {"x": 5.0}}


def test_prompts_of_all_kinds_take_turns():
    assert [prompt.kind for prompt in some_prompts(2)] == [*KINDS, *KINDS]


@pytest.mark.parametrize("reduced", [0, 11])
def test_transformers_scores_as_our_draft_does(tmp_path, reduced):
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    if reduced:
        from safetensors.torch import load_file, save_file

        config.reduced_head_size = reduced
        config.save_pretrained(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        ids = torch.arange(3, 3 + reduced)
        weights |= {"head_token_ids": ids, "lm_head.weight": weights["lm_head.weight"][ids].clone()}
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    ours = load_model(tmp_path, dtype=torch.float32)
    tokens = torch.arange(9) * 4
    positions = torch.arange(9)
    expected = EagerRunner(ours, 64).forward(
        tokens, positions, positions, causal_mask(positions, 64)
    )
    got = as_transformers(ours)(tokens[None]).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert int(got.isinf().any(0).sum()) == (40 - reduced if reduced else 0)
