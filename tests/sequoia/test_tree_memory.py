"""A tree whose rows cannot fit a GPU is refused before anything is run."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments.random_pair import llama_config, random_pair
from sequoia import SamplingParams, SpeculativeDecoder, memory

VOCAB = 32000


def test_a_tree_over_memory_names_the_largest_that_fits(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: 2 * memory.GIB)
    cuda = torch.device("cuda")
    most = 2 * memory.GIB // (memory.TABLES * VOCAB * 4)
    memory.check_tree_memory(most, VOCAB, cuda)
    with pytest.raises(ValueError, match=f"2000 nodes needs about .* at most {most} nodes fit"):
        memory.check_tree_memory(2000, VOCAB, cuda)
    memory.check_tree_memory(2 * most, VOCAB, torch.device("cpu"))  # holds fewer rows at once
    with pytest.raises(ValueError, match="nodes fit"):
        memory.check_tree_memory(4 * most, VOCAB, torch.device("cpu"))


class Peak(TorchDispatchMode):
    """The most bytes that tensors made in this block hold at one time."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.held = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor.untyped_storage())
        return out

    def hold(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.held:
            self.held.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.free, key, size)

    def free(self, key, size):
        self.held.discard(key)
        self.now -= size


@pytest.mark.parametrize("verifier", ["rrs_wor", "rrs_wor/traversal"])
def test_the_prediction_covers_what_a_step_holds(verifier):
    config = llama_config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    pair = random_pair(config, config, torch.bfloat16, "meta")
    step = SpeculativeDecoder(pair, "chains:4x8", verifier, 128).step(SamplingParams(), 100)[1]
    with Peak() as peak:
        step.run(128)
    table = step.growth.size * VOCAB * 4
    assert memory.TABLES / 2 < peak.most / table <= memory.TABLES
