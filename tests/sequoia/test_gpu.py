"""The captured step on a GPU. Skipped without one; `experiments/gpu_check.sh` runs the same."""

from __future__ import annotations

import pytest
import torch

import verifiers
from experiments import gpu_checks

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", gpu_checks.checks())
def test_on_a_gpu(name):
    gpu_checks.checks()[name]("cuda")


def test_the_checks_cover_every_verifier_and_dtype():
    names = " ".join(gpu_checks.checks())
    assert all(f"captured = eager, {name}, fp32" in names for name in verifiers.NAMES)
    assert "fp16" in names
    assert "bf16" in names


def test_the_checks_run_where_there_is_no_gpu(monkeypatch, tiny_pair):
    """So that they are not found broken on the day there is one."""
    monkeypatch.setattr(gpu_checks, "REQUESTS", gpu_checks.REQUESTS[1:2])
    monkeypatch.setattr(gpu_checks, "VOCAB", 97)
    monkeypatch.setattr(gpu_checks, "make_pair", lambda dtype, device: tiny_pair(97))
    gpu_checks.captured_equals_eager("cpu", "rrs_wor", "fp32", "kary:2^3")
    gpu_checks.greedy_is_autoregressive("cpu")
    gpu_checks.step_never_synchronises("cpu", tokens=8)
    gpu_checks.memory_is_stable("cpu", steps=1, tokens=8)


def test_a_difference_is_named():
    with pytest.raises(AssertionError, match="a and b differ from token 2 of 3 on"):
        gpu_checks.same("a", [1, 2, 3], "b", [1, 2, 4])
