"""The batched form on the meta device: no host reads, no copies from the host, constant shapes."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import verifiers
from tree_builder import TreeTopology
from verifiers import DeferredRows, Drafted, Sampling, Uniforms, make_rows
from verifiers.base import Plan
from verifiers.draws import inverse_cdf
from verifiers.rrs import Rrs

TREE = TreeTopology((-1, 0, 0, 1, 1, 2, 3, 3, 5))
V = 700


class OnlyMeta(TorchDispatchMode):
    """Refuses any tensor that is not on the meta device: on CUDA it would be a host copy."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten((args, kwargs, result))[0]:
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                raise AssertionError(f"{func} touches a tensor on {value.device}")
        return result


def step_on_meta(verifier, tree=TREE, greedy=False):
    """Rows, draws level by level and the verdict, all under the mode."""
    tensors = tree.tensors("meta")
    E, K = tensors.children.shape
    flat = torch.empty(Uniforms.num(E, K, tree.size), dtype=torch.float64, device="meta")
    scalar = torch.empty((), device="meta")
    sampling = Sampling(scalar, scalar, 40, greedy)
    raw = torch.empty(tree.size, V, device="meta")
    with OnlyMeta():
        uniforms = Uniforms.view(flat, E, K, tree.size)
        draft = make_rows(raw[:E], sampling)
        drafted, row = [], 0
        for level in tree.levels:
            counts = tuple(len(tree.children[node]) for node in level if tree.children[node])
            if counts:
                rows = draft.select(torch.empty(len(counts), dtype=torch.long, device="meta"))
                part = verifier.propose(rows, counts, uniforms.draw[row : row + len(counts)])
                assert part.tokens.shape == (len(counts), max(counts))
                pad = (0, K - max(counts))
                drafted.append(
                    Drafted(
                        torch.nn.functional.pad(part.tokens, pad),
                        torch.nn.functional.pad(part.live, pad),
                        part.hub,
                    )
                )
                row += len(counts)
        joined = Drafted(*map(torch.cat, zip(*drafted, strict=True))) if drafted else None
        target = DeferredRows(raw, sampling)
        return verifier.verify(tensors, joined, target, draft if drafted else None, uniforms)


@pytest.mark.parametrize("name", verifiers.NAMES)
@pytest.mark.parametrize("tree", [TREE, TreeTopology((-1, 0, 1, 2)), TreeTopology((-1,))])
def test_a_step_stays_on_its_device(name, tree):
    verdict = step_on_meta(verifiers.make(name), tree, greedy=name == "greedy")
    assert verdict.path.shape == (tree.num_levels,)
    for value in verdict:
        assert value.device.type == "meta"
        assert value.dtype == torch.long
    assert all(value.shape == () for value in verdict[1:])


class ReadsTheHost(Rrs):
    def plan(self, target, draft, drafted, budget):
        plan = super().plan(target, draft, drafted, budget)
        return plan if plan.stop[0].item() else Plan(*plan)


class CopiesFromTheHost(Rrs):
    def plan(self, target, draft, drafted, budget):
        half = torch.tensor([0.5]).to(budget.device)
        return super().plan(target, draft, drafted, budget * half)


@pytest.mark.parametrize("rule", [ReadsTheHost, CopiesFromTheHost])
def test_the_mode_catches_host_traffic(rule):
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        step_on_meta(verifiers.TokenLevel(rule()))


def test_number_of_kernels_follows_depth_and_width_not_size():
    """Twice the nodes on the same levels: the same operations."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    def calls(name, tree):
        step_on_meta(verifiers.make(name), tree)  # makes the tree's tensors, once
        with Count() as count:
            step_on_meta(verifiers.make(name), tree)
        return count.calls

    few = TreeTopology((-1, *[0] * 4, *[1] * 4))
    many = TreeTopology((-1, *[0] * 4, *[1] * 4, *[2] * 4, *[3] * 4, *[4] * 4))
    deeper = TreeTopology((-1, *[0] * 4, *[1] * 4, *[5] * 4))
    for name in ("rrs_wor", "k_hub/traversal"):
        assert calls(name, many) == calls(name, few) < calls(name, deeper)


def test_inverse_cdf_has_one_shape_whatever_the_rows_hold():
    weights = torch.empty(3, V, device="meta")
    assert inverse_cdf(weights, torch.empty(3, 4, device="meta").double()).shape == (3, 4)
