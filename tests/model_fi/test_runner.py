"""EagerRunner: graph safety, limits, and independence of runners on one model."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model_fi import EagerRunner, LlamaForCausalLM_FI, causal_mask, prepare_model, tree_mask
from model_fi.attention import MatmulAttention, SdpaAttention

FAMILY_NAMES = ["llama3", "llama-bias", "qwen2", "qwen3"]


class MetaOnly(TorchDispatchMode):
    """Refuses every tensor that is not on meta: on a device it would be a copy from the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                raise RuntimeError(f"{func} touched a tensor on {leaf.device}")
        return out


def meta_model(config):
    with torch.device("meta"):
        model = LlamaForCausalLM_FI(config)
    return prepare_model(model, config.max_position_embeddings)


@pytest.mark.parametrize("backend", [MatmulAttention(), SdpaAttention()], ids=lambda b: b.name)
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_pass_and_commit_are_graph_safe(tiny, name, backend):
    runner = EagerRunner(meta_model(tiny.make_config(name)), 64, backend)
    n = torch.zeros((), dtype=torch.long, device="meta")
    ids = torch.zeros(5, dtype=torch.long, device="meta")
    ancestors = torch.zeros(5, 5, dtype=torch.bool, device="meta")
    with MetaOnly():
        mask = tree_mask(n, ancestors, 64)
        logits = runner.forward(ids, ids + n, ids, mask, ids[:2])
        runner.cache.compact(ids[:3] + n, n)
        causal_mask(ids, 64)
    assert logits.shape == (2, 97)


@pytest.mark.parametrize("sin", ["item", "from host"])
def test_the_graph_safety_test_can_fail(tiny, sin):
    runner = EagerRunner(meta_model(tiny.make_config("llama2")), 64)
    ids = torch.zeros(5, dtype=torch.long, device="meta")

    def step():
        positions = ids + (ids[0].item() if sin == "item" else torch.tensor([1, 2, 3, 4, 5]))
        runner.forward(ids, positions, ids, causal_mask(ids, 64))

    with MetaOnly(), pytest.raises((RuntimeError, NotImplementedError)):
        step()


@pytest.fixture
def model(tiny):
    config = tiny.make_config("llama2")
    return prepare_model(LlamaForCausalLM_FI(config), 256)


def test_two_runners_share_the_model_and_no_cache(model):
    one, two = EagerRunner(model, 64), EagerRunner(model, 64)
    text, other = torch.randint(0, 97, (2, 20))
    alone = one.prefill(text)
    two.prefill(other)
    torch.testing.assert_close(one.prefill(text[-1:], 19), alone)
    assert one.cache.k.data_ptr() != two.cache.k.data_ptr()


@pytest.mark.parametrize("shape", [(4, 64), (5, 65), (5, 0)])
def test_a_mask_of_another_shape_is_refused(model, shape):
    ids = torch.arange(5)
    with pytest.raises(ValueError, match=rf"\({shape[0]}, {shape[1]}\) for 5 tokens and 64 slots"):
        EagerRunner(model, 64).forward(ids, ids, ids, torch.ones(shape, dtype=torch.bool))


def test_what_a_runner_says_of_itself(model):
    runner = EagerRunner(model, 40)
    assert runner.vocab_size == 97
    assert runner.config is model.config
    assert runner.device == torch.device("cpu")
    assert runner.cache.slots == 40


@pytest.mark.parametrize(
    ("count", "start", "says"), [(0, 0, "no tokens"), (41, 0, "41 tokens"), (5, 36, "slot 36")]
)
def test_prefill_limits(model, count, start, says):
    with pytest.raises(ValueError, match=says):
        EagerRunner(model, 40).prefill(torch.zeros(count, dtype=torch.long), start)


def test_stale_slots_do_not_leak_into_a_new_text(model):
    runner = EagerRunner(model, 64)
    fresh = EagerRunner(model, 64)
    runner.prefill(torch.randint(0, 97, (60,)))
    text = torch.randint(0, 97, (10,))
    assert torch.equal(runner.prefill(text), fresh.prefill(text))


def test_nothing_of_the_pass_needs_gradients(model):
    logits = EagerRunner(model, 64).prefill(torch.tensor([1, 2, 3]))
    assert not logits.requires_grad
