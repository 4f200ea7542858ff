"""The verifier benchmark runs, covers every verifier, and its peer obeys the same law."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from experiments.bench_verifiers import NAMES, main
from experiments.verifier_peer import RULES, Peer
from experiments.verifier_setting import complete_binary


def test_quick_mode():
    outcome = CliRunner().invoke(main, ["--quick"])
    assert outcome.exit_code == 0, outcome.output
    record = json.loads(outcome.output.splitlines()[-1])
    measured = {result["verifier"] for result in record["results"]}
    assert measured == set(NAMES) | {f"{name} (peer loop)" for name in RULES}
    for result in record["results"]:
        assert result["size"] == 8
        assert result["vocab"] == 1000
        assert result["step_us"] > 0
        assert result["read_us"] > 0
        assert 1 <= result["tokens_per_step"] <= 4
    assert {"commit", "versions", "device", "machine", "threads", "seed"} <= record.keys()


def test_no_peer_where_rows_are_filtered():
    outcome = CliRunner().invoke(main, ["--quick", "--verifier", "rrs", "--top-p", "0.9"])
    assert outcome.exit_code == 0, outcome.output
    record = json.loads(outcome.output.splitlines()[-1])
    assert [result["verifier"] for result in record["results"]] == ["rrs"]


@pytest.mark.parametrize(
    "arguments",
    [["--verifier", "greedy"], ["--temperature", "0"], ["--graph"], ["--verifier", "nonsense"]],
)
def test_bad_arguments(arguments):
    outcome = CliRunner().invoke(main, ["--quick", *arguments])
    assert outcome.exit_code == 2, outcome.output


def test_complete_binary():
    tree = complete_binary(8)
    assert tree.size == 8
    assert tree.children[0] == (1, 2)
    assert tree.children[3] == (7,)


@pytest.mark.parametrize("name", RULES)
def test_peer_emits_the_law_of_the_target(name):
    """First emitted token over many steps against the root's target row, both children drafted."""
    steps, topology = 4000, complete_binary(3)
    generator = torch.Generator().manual_seed(0)
    target_logits = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    draft_logits = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    peer = Peer(topology, replacement=name == "rrs", temperature=0.8)
    counts = torch.zeros(4, dtype=torch.float64)
    for _ in range(steps):
        q, tokens = peer.draw(draft_logits, generator)
        found = peer.verify(target_logits, q, tokens, generator)
        counts[tokens[found.path[1]] if len(found.path) > 1 else found.bonus] += 1
    p = (target_logits[0] / 0.8).softmax(-1)
    assert ((counts / steps - p).abs() < 5 * (p * (1 - p) / steps).sqrt()).all()
