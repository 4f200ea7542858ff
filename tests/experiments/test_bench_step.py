"""The step benchmark runs without a GPU, and the tracer it counts with counts."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from experiments.bench_step import main
from experiments.device_ops import traced
from experiments.step_cases import PRESETS, tree_of


def test_tiny_preset():
    options = ["--preset", "tiny", "--seconds", "0.01", "--context", "64"]
    outcome = CliRunner().invoke(main, options)
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.output.splitlines()
    record = json.loads(lines[-1])
    assert [case["tree"] for case in record["cases"]] == ["chain:5", "best:64"]
    assert record["host_syncs_per_step"] == 1
    assert record["launches_per_step"] > 100
    assert set(record["phases"]) == {"draft", "target", "verify", "commit", "step"}
    assert all(value > 0 for value in record["phases"].values())
    for case in record["cases"]:
        assert case["host_copies_per_step"] == 0
        assert case["captured_ms"] == {}
        assert case["ratios"]["target_pass_to_one_read_of_weights"] > 0
        assert case["bucket"] == 64 * -(-(63 + case["nodes"]) // 64)
    assert record["headline"]["tree"] == "best:64"
    assert {"commit", "versions", "device", "dtype", "threads"} <= record.keys()
    assert "tokens/s" in lines[1]


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = CliRunner().invoke(main, ["--device", "cuda"])
    assert outcome.exit_code == 2
    assert "no CUDA device" in outcome.output


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_shapes_they_are_named_for(name):
    target, draft = PRESETS[name].configs()
    assert target.vocab_size == draft.vocab_size
    longest = max(PRESETS[name].contexts) + max(tree_of(t).size for t in PRESETS[name].trees)
    assert target.max_position_embeddings >= longest
    if name == "8b-1b":
        assert target.hidden_size // target.num_attention_heads == 128
        assert draft.hidden_size // draft.num_attention_heads == 64


def test_trees_of_a_benchmark_have_their_size():
    assert [tree_of(f"best:{size}").size for size in (64, 128, 512)] == [64, 128, 512]
    assert tree_of("chain:5").parents == (-1, 0, 1, 2, 3)


def test_the_tracer_counts_kernels_and_not_views():
    x = torch.zeros(4, 4, device="meta")
    with traced("meta") as ops:
        x.view(2, 8).t()[0].unsqueeze(0)
        torch.empty(3, device="meta")
    assert ops.num_launches == 0
    with torch.inference_mode(), traced("meta") as ops:
        (x + 1).mul_(2).matmul(x)
    assert ops.launches == {"aten.add.Tensor": 1, "aten.mul_.Tensor": 1, "aten.mm.default": 1}
    assert not ops.reads
    assert not ops.copies


def test_the_tracer_counts_reads_on_the_host_too():
    x = torch.arange(4)
    with traced("cpu") as ops:
        x[0].item(), x.nonzero(), x[x > 1]
    assert len(ops.reads) == 3
