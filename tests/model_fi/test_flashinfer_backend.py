"""The FlashInfer adapter on a double of FlashInfer, its calls against the real signatures."""

from __future__ import annotations

import importlib.util
import inspect
import json
import random
import shutil
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import flashinfer_standin as standin

from experiments.device_ops import traced
from experiments.random_pair import llama_config, near_pair
from model_fi import SdpaAttention, causal_mask, tree_mask
from model_fi import flashinfer_backend as backend_module
from model_fi.attention import AttentionShape, default_backend
from model_fi.flashinfer_backend import (
    FlashInferAttention,
    choose_backend,
    pack_mask,
    unusable,
)
from sequoia import SamplingParams, SpeculativeDecoder
from tree_builder import TreeTopology

CPU = torch.device("cpu")
RECORDED = Path(__file__).parents[1] / "data" / "flashinfer_signatures.json"
SLOTS = 192


class Spy(standin.BatchPrefillWithPagedKVCacheWrapper):
    """The double, noting how it is called."""

    calls: list = []  # noqa: RUF012

    def __init__(self, *args, **kwargs):
        self.calls.append(("__init__", args, kwargs))
        super().__init__(*args, **kwargs)

    def plan(self, *args, **kwargs):
        self.calls.append(("plan", args, kwargs))
        super().plan(*args, **kwargs)

    def run(self, *args, **kwargs):
        self.calls.append(("run", args, kwargs))
        return super().run(*args, **kwargs)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    for name, module in standin.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["flashinfer"].BatchPrefillWithPagedKVCacheWrapper = Spy
    monkeypatch.setattr(backend_module, "WORKSPACE", 64)
    Spy.calls = []


def random_tree(rng, size):
    parents = [-1] + [rng.randrange(node) for node in range(1, size)]
    return TreeTopology.from_parents(parents)


def tensors(shape, t, seed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(t, shape.num_heads, shape.head_dim, generator=generator)
    k, v = torch.randn(2, shape.num_kv_heads, SLOTS, shape.head_dim, generator=generator)
    return q, k, v


def compare(backend, mask, shape, seed):
    q, k, v = tensors(shape, mask.shape[0], seed)
    expected = SdpaAttention().begin(mask, shape)(q, k, v)
    attend = backend.begin(mask, shape)
    for _ in range(2):  # every layer calls it
        torch.testing.assert_close(attend(q, k, v), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("seed", range(3))
def test_planned_tree_passes_equal_sdpa(group, seed):
    rng = random.Random(seed)
    shape = AttentionShape(2 * group, 2, 8, torch.float32)
    backend = FlashInferAttention(shape, SLOTS, CPU)
    tree = random_tree(rng, rng.randint(1, 20))
    ancestors = tree.ancestor_mask
    for bucket in (64, 128, 64):  # a bucket comes back: its plan must still be good
        backend.plan(tree.size, bucket)
        for _ in range(2):
            n = torch.tensor(rng.randint(1, bucket - tree.size + 1))
            compare(backend, tree_mask(n, ancestors, bucket), shape, seed)
    assert sum(name == "plan" for name, _, _ in Spy.calls) == 2


def test_unplanned_passes_equal_sdpa():
    shape = AttentionShape(6, 2, 8, torch.float32)
    backend = FlashInferAttention(shape, SLOTS, CPU)
    for t, first, bucket in ((5, 0, 64), (70, 20, 128), (1, 190, 192)):
        compare(backend, causal_mask(torch.arange(first, first + t), bucket), shape, t)


def test_a_whole_generation_says_what_sdpa_says():
    config = llama_config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    pair = near_pair(config, torch.float32, "cpu")
    params = SamplingParams(max_new_tokens=90, seed=3)
    plain = SpeculativeDecoder(pair, "kary:2^3", max_length=160)
    other = SpeculativeDecoder(pair, "kary:2^3", max_length=160)
    runner = other.target
    runner.backend = FlashInferAttention(pair.target.attention_shape, runner.cache.slots, CPU)
    expected = plain.generate([1, 2, 3, 4], params)
    assert other.generate([1, 2, 3, 4], params).token_ids == expected.token_ids
    assert any(name == "run" for name, _, _ in Spy.calls)
    # In the step nothing is planned: of each size once before it, and the prompt.
    plans = sum(name == "plan" for name, _, _ in Spy.calls)
    assert plans == len(runner.backend._planned) + 1


@pytest.mark.parametrize("shape", [(1, 64), (3, 5), (7, 13), (8, 8), (33, 128)])
def test_bits_are_packed_as_numpy_packs_them(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = numpy.packbits(mask.flatten().numpy(), bitorder="little")
    assert pack_mask(mask).tolist() == expected.tolist()
    assert pack_mask(torch.ones(shape, dtype=torch.bool))[0] == 255


def test_packing_reads_nothing_on_the_host():
    with traced("meta", strict=True) as ops:
        packed = pack_mask(torch.empty(7, 64, dtype=torch.bool, device="meta"))
    assert packed.shape == (56,)
    assert ops.num_launches <= 3


def exercise():
    """Every kind of call the adapter makes."""
    shape = AttentionShape(4, 2, 8, torch.float32)
    backend = FlashInferAttention(shape, SLOTS, CPU)
    backend.plan(3, 64)
    for t in (3, 4):
        compare(backend, causal_mask(torch.arange(t), 64), shape, 0)
    return Spy.calls


def recorded_signatures():
    recorded = json.loads(RECORDED.read_text())
    recorded.pop("version")
    return {
        name: inspect.Signature(
            [
                inspect.Parameter(
                    parameter,
                    getattr(inspect.Parameter, kind),
                    default=None if optional else inspect.Parameter.empty,
                )
                for parameter, kind, optional in parameters
            ]
        )
        for name, parameters in recorded.items()
    }


def test_every_call_binds_to_the_signatures_of_0_7_4():
    signatures = recorded_signatures()
    calls = exercise()
    assert {name for name, _, _ in calls} == set(signatures)
    for name, args, kwargs in calls:
        signatures[name].bind(None, *args, **kwargs)
    with pytest.raises(TypeError):  # the binding can fail
        signatures["plan"].bind(None, qo_indptr=None, page_sizes=1)


def test_the_recorded_signatures_are_those_of_the_installed_package(monkeypatch):
    for name in standin.modules():
        monkeypatch.delitem(sys.modules, name)
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("flashinfer-python is not installed")
    flashinfer = pytest.importorskip("flashinfer")
    if flashinfer.__version__ != json.loads(RECORDED.read_text())["version"]:
        pytest.skip(f"flashinfer {flashinfer.__version__} is installed, 0.7.4 is recorded")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
    for name, expected in recorded_signatures().items():
        found = inspect.signature(getattr(wrapper, name)).parameters.values()
        ours = [(p.name, p.kind, p.default is p.empty) for p in expected.parameters.values()]
        assert [(p.name, p.kind, p.default is p.empty) for p in found] == ours


def test_wrong_shapes_are_refused_before_a_kernel_reads_them():
    shape = AttentionShape(4, 2, 8, torch.float32)
    backend = FlashInferAttention(shape, SLOTS, CPU)
    mask = causal_mask(torch.arange(3), 64)
    q, k, v = tensors(shape, 3, 0)
    attend = backend.begin(mask, shape)
    for bad in ((q[:2], k, v), (q, k[:, :64], v), (q, k, v[:1]), (q.half(), k, v)):
        with pytest.raises(ValueError, match="expected"):
            attend(*bad)
    for seen, other in (
        (mask, shape._replace(head_dim=16)),
        (causal_mask(torch.arange(3), 256), shape),
    ):
        with pytest.raises(ValueError, match="made for"):
            backend.begin(seen, other)
    with pytest.raises(ValueError, match="300 slots"):
        backend.plan(3, 300)


CUDA = torch.device("cuda")
GOOD = AttentionShape(32, 8, 128, torch.bfloat16)


@pytest.fixture
def machine(monkeypatch):
    """A machine where FlashInfer is usable; the tests take one thing away."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    return monkeypatch


def test_a_fitting_machine_is_accepted(machine):
    assert unusable(GOOD, CUDA) == ""


@pytest.mark.parametrize(
    ("shape", "capability", "version", "tools", "reason"),
    [
        (GOOD._replace(head_dim=80), (9, 0), "0.7.4", True, "head_dim 80 is not one of 64, 128"),
        (GOOD._replace(dtype=torch.float32), (9, 0), "0.7.4", True, "the model is torch.float32"),
        (GOOD, (7, 5), "0.7.4", True, "compute capability 7.5 is too old"),
        (GOOD, (9, 0), "0.6.1", True, "version 0.6.1 is not 0.7.x"),
        (GOOD, (9, 0), "0.8.0rc1", True, "version 0.8.0rc1 is not 0.7.x"),
        (GOOD, (9, 0), "0.7.4", False, "needs nvcc and ninja"),
    ],
)
def test_why_it_is_unusable(machine, shape, capability, version, tools, reason):
    machine.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    machine.setattr(sys.modules["flashinfer"], "__version__", version)
    if not tools:
        machine.setattr(shutil, "which", lambda name, path=None: None)
        machine.setattr(backend_module, "_ninja", lambda: None)
    assert reason in unusable(shape, CUDA)


def test_a_missing_or_broken_package_is_named(machine):
    machine.setattr(importlib, "import_module", lambda name: 1 / 0 if name == "x" else _broken())
    assert unusable(GOOD, CUDA) == "importing it failed: libcuda.so.1 is missing"
    machine.setattr(importlib.util, "find_spec", lambda name: None)
    assert "is not installed" in unusable(GOOD, CUDA)


def _broken():
    raise OSError("libcuda.so.1 is missing")


def test_falling_back_takes_one_warning_and_auto_takes_none():
    with pytest.warns(UserWarning, match="not FlashInfer: it needs a CUDA device") as caught:
        backend = choose_backend("flashinfer", GOOD, SLOTS, [CPU, CPU])
    assert len(caught) == 1
    assert backend.name == default_backend(CPU).name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_backend("auto", GOOD, SLOTS, [CUDA]).name == "sdpa"
        assert choose_backend("sdpa", GOOD, SLOTS, [CPU]).name == "sdpa"
    spread = [torch.device("cuda:0"), torch.device("cuda:1")]
    with pytest.warns(UserWarning, match="on several devices"):
        choose_backend("flashinfer", GOOD, SLOTS, spread)
    with pytest.raises(ValueError, match="unknown attention 'fa3'"):
        choose_backend("fa3", GOOD, SLOTS, [CPU])
