"""One law, two forms: same uniforms in, same verdict out; and the batched form is graph safe."""

import pytest
import torch
from toys import grow, random_rows, random_tree, uniforms_for

import verifiers
from verifiers.walkers import Step

SAMPLING = [name for name in verifiers.NAMES if name != "greedy"]


@pytest.mark.parametrize("name", verifiers.NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lazy_equals_batched(name, dtype):
    verifier = verifiers.make(name)
    most = verifier.max_children or 4
    for seed in range(60):
        tree = random_tree(2 + seed % 12, 1 + seed % most, seed)
        V = 3 + seed % 5
        # a good draft, so that walks go deep
        target = random_rows(tree.size, V, seed, filtered=0.2 * (seed % 2), dtype=dtype)
        noise = random_rows(len(tree.inner), V, seed + 999, scale=0.5, filtered=0.0, dtype=dtype)
        logits = target.logits[list(tree.inner)] + noise.logits
        draft = verifiers.Rows(logits, logits.softmax(-1))
        tensors, drafted, uniforms = grow(verifier, tree, draft, uniforms_for(tree, seed))
        step = Step(tensors, drafted, target, draft, uniforms)
        lazy, batched = verifier.lazy(step), verifier.batched(step)
        for field in verifiers.Verdict._fields:
            assert torch.equal(getattr(lazy, field), getattr(batched, field)), (seed, field)
