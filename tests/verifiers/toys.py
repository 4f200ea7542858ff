"""Toy rows and trees for the verifier tests."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
import torch

from tree_builder import TreeTopology
from verifiers import Drafted, Rows, Uniforms


def random_rows(num_rows, vocabulary, seed, scale=2.0, filtered=0.3, dtype=torch.float64):
    """[b, V] rows, some tokens filtered (-inf), never all of a row."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(num_rows, vocabulary, generator=generator, dtype=torch.float64)
    hide = torch.rand(num_rows, vocabulary, generator=generator) < filtered
    hide[torch.arange(num_rows), torch.randint(vocabulary, (num_rows,), generator=generator)] = (
        False
    )
    logits = logits.masked_fill(hide, -torch.inf).to(dtype)
    return Rows(logits, logits.softmax(-1))


def random_tree(size, most, seed):
    """A random tree of ``size`` nodes with at most ``most`` children each."""
    rng = random.Random(seed)
    parents, counts = [-1], [0] * size
    for node in range(1, size):
        parent = rng.choice([p for p in range(node) if counts[p] < most])
        counts[parent] += 1
        parents.append(parent)
    return TreeTopology.from_parents(parents)


def grow(verifier, tree, draft, flat):
    """Draw children for all inner nodes of ``tree`` at once from ``draft`` (one row each)."""
    tensors = tree.tensors(flat.device)
    E, K = tensors.children.shape
    uniforms = Uniforms.view(flat, E, K, tree.size)
    counts = tuple(len(tree.children[node]) for node in tree.inner)
    drafted = verifier.propose(draft, counts, uniforms.draw)
    return tensors, Drafted(*drafted), uniforms


def uniforms_for(tree, seed, num=None):
    generator = torch.Generator().manual_seed(seed)
    E, K, m = len(tree.inner), tree.max_children, tree.size
    return torch.rand(Uniforms.num(E, K, m), generator=generator, dtype=torch.float64)


@contextmanager
def device_form(*modules):
    """The branches that ``modules`` take on a device, on tensors in host memory."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "on_host", lambda tensor: False)
        yield
