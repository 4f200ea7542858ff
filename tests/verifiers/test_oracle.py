"""Acceptance of the verifiers themselves (their draws, their plans) against the given values."""

import json
from pathlib import Path

import pytest
import torch

from verifiers import Drafted, Rows
from verifiers.enumeration import World, labels, outcomes
from verifiers.k_hub import KHub
from verifiers.k_seq import KSeq
from verifiers.rrs import Rrs
from verifiers.rrs_wor import RrsWor
from verifiers.spechub import SpecHub

DATA = Path(__file__).parents[1] / "data" / "oracle.json"
CASES = json.loads(DATA.read_text())["cases"]


def row(values):
    """One row whose logits are log-probabilities."""
    probs = torch.tensor([values], dtype=torch.float64)
    return Rows(probs.log(), probs)


def expand(rows, count):
    return Rows(rows.logits.expand(count, -1), rows.probs.expand(count, -1))


def every_draw(rule, q, k):
    """(weights [n], Drafted [n, k]): all sets of children the rule may draw, enumerated."""
    uniforms = labels(k, 0)[None]
    start = World(1.0, dict.fromkeys(uniforms[0].tolist(), (0.0, 1.0)), rule)
    worlds = list(outcomes(start, lambda rule: rule.draw(q, (k,), uniforms)))
    weights = torch.tensor([world.weight for world, _ in worlds], dtype=torch.float64)
    parts = zip(*(drafted for _, drafted in worlds), strict=True)
    return weights, Drafted(*(torch.cat(part) for part in parts))


def accepted(rule, p, q, k):
    """[k] unconditional acceptance of each slot, and the law of the emitted token [V]."""
    weights, drafted = every_draw(rule, q, k)
    count = weights.shape[0]
    plan = rule.plan(expand(p, count), expand(q, count), drafted, torch.ones_like(weights))
    budgets = plan.budgets.gather(1, plan.order)
    missed = torch.cat([torch.ones(count, 1), (1 - budgets).cumprod(1)], 1)
    taken = torch.zeros_like(budgets).scatter(1, plan.order, budgets * missed[:, :-1])
    law = torch.zeros_like(p.probs[0])
    law.index_add_(0, drafted.tokens.flatten(), (taken * weights[:, None]).flatten())
    bonus = plan.residual / plan.residual.sum(-1, keepdim=True)
    law += ((missed[:, -1] * weights)[:, None] * bonus).sum(0)
    return (taken * weights[:, None]).sum(0), law


@pytest.mark.parametrize("index", range(len(CASES)))
def test_oracle(index):
    case = CASES[index]
    p, q = row(case["p"]), row(case["q"])
    assert int(q.probs.argmax()) == case["hub"]
    counts = (2, 3) if len(case["p"]) <= 5 or index < 2 else (2,)  # V^3 draws are slow at V = 8
    for k in counts:
        for rule in (Rrs(), RrsWor()):
            values, law = accepted(rule, p, q, k)
            assert values.tolist() == pytest.approx(case[rule.name][str(k)], abs=1e-9)
            assert law.tolist() == pytest.approx(case["p"], abs=1e-9)
        for rule in (KSeq(), KHub()):
            values, law = accepted(rule, p, q, k)
            assert values.sum().item() == pytest.approx(case[rule.name][str(k)], abs=1e-9)
            assert law.tolist() == pytest.approx(case["p"], abs=1e-9)
    values, law = accepted(SpecHub(), p, q, 2)
    assert values.tolist() == pytest.approx(case["spechub"], abs=1e-9)
    assert law.tolist() == pytest.approx(case["p"], abs=1e-9)
    for rule in (Rrs(), RrsWor(), KSeq(), SpecHub(), KHub()):
        assert accepted(rule, p, q, 1)[0].item() == pytest.approx(case["single"], abs=1e-9)


class TestWorkedExample:
    A, B, C, D = range(4)
    q = row([0.50, 0.30, 0.15, 0.05])

    def budgets(self, p, first, second):
        """Budgets of slots 0 and 1, in that order, and the residual, for one spechub pair."""
        tokens = torch.tensor([[first, second]])
        hub = torch.tensor([0 if first == self.A else 1])
        drafted = Drafted(tokens, torch.ones(1, 2, dtype=torch.bool), hub)
        plan = SpecHub().plan(p, self.q, drafted, torch.ones(1, dtype=torch.float64))
        assert plan.order[0].tolist() == ([1, 0] if first == self.A else [0, 1])
        return plan.budgets[0].tolist(), plan.residual[0].tolist()

    def test_pairs(self):
        p = row([0.20, 0.10, 0.30, 0.40])
        A, B, C, D = self.A, self.B, self.C, self.D
        assert self.budgets(p, B, A)[0] == pytest.approx([1 / 3, 0])
        assert self.budgets(p, C, A)[0][0] == pytest.approx(1)
        assert self.budgets(p, D, A)[0][0] == pytest.approx(1)
        assert self.budgets(p, A, B)[0] == pytest.approx([2 / 3, 0])
        assert self.budgets(p, A, C)[0][1] == pytest.approx(1)
        assert self.budgets(p, A, D)[0][1] == pytest.approx(1)
        assert self.budgets(p, B, A)[1] == pytest.approx([0, 0, 0, 0.30])

    def test_totals(self):
        p = row([0.20, 0.10, 0.30, 0.40])
        assert accepted(SpecHub(), p, self.q, 2)[0].tolist() == pytest.approx([0.50, 0.20])
        assert accepted(Rrs(), p, self.q, 1)[0].sum().item() == pytest.approx(0.5)
        assert accepted(Rrs(), p, self.q, 2)[0].sum().item() == pytest.approx(0.6)
        assert accepted(RrsWor(), p, self.q, 2)[0].sum().item() == pytest.approx(0.67714, abs=5e-6)

    def test_a_good_draft(self):
        p = row([0.4, 0.2, 0.3, 0.1])
        assert accepted(SpecHub(), p, self.q, 2)[0].tolist() == pytest.approx([0.7, 0.3])
        assert accepted(Rrs(), p, self.q, 2)[0].sum().item() == pytest.approx(0.84)
        assert accepted(RrsWor(), p, self.q, 2)[0].sum().item() == pytest.approx(0.86857, abs=5e-6)
