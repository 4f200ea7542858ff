"""The peers harness: resumable runs, a report of medians, and the same draft for everyone."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.peers import measure, report
from experiments.transformers_draft import as_transformers
from model_fi import EagerRunner, causal_mask, load_model
from sequoia.profiling import Journal, Text


def counting_peer(calls, name):
    def run(ids, params):
        calls.append((name, params.temperature, params.seed))
        return params.max_new_tokens

    return run


def test_runs_are_interleaved_written_as_they_come_and_resumed(tmp_path):
    path, calls = tmp_path / "runs.jsonl", []
    peers = {name: counting_peer(calls, name) for name in ("one", "two")}
    prompts = [Text("a", [1], 1), Text("b", [2], 1)]

    def measured():
        calls.clear()
        journal = Journal(path, {"pair": "tiny"})
        measure(peers, prompts, [0.0, 0.8], 2, 5, journal)
        return journal.values()

    done = measured()
    assert len(done) == 2 * 2 * 2 * 2
    assert [run[0] for run in done[:4]] == ["one", "two", "one", "two"]
    assert measured() == done
    assert calls == []
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-3]) + '\n{"key": "tw')  # killed while writing
    again = measured()
    assert [run[:5] for run in again] == [run[:5] for run in done]
    assert len(calls) == 3 + 2  # the lost runs, and a warm-up of each peer


def test_the_report_takes_medians_over_repeats_then_prompts():
    runs = [
        ["x", prompt, 0.0, repeat, 10, seconds]
        for repeat, (prompt, seconds) in enumerate(
            [("a", 1), ("a", 2), ("a", 100), ("b", 5), ("b", 5), ("c", 1)]
        )
    ]
    assert report(runs) == {"T = 0": {"x": 5.0}}


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
