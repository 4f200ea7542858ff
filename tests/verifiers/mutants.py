"""Verifiers with one fault each. Every one looks plausible, and every one is biased."""

from __future__ import annotations

import torch

from verifiers import Drafted, TokenLevel, Traversal
from verifiers.draws import inverse_cdf
from verifiers.k_hub import KHub
from verifiers.k_seq import KSeq
from verifiers.plans import finish
from verifiers.probs import at, exclude, mask_tokens, positive_part, ratio
from verifiers.rrs import Rrs, draw_independent, plan_recursive
from verifiers.rrs_wor import RrsWor
from verifiers.spechub import SpecHub
from verifiers.target_match import TargetMatch

# ---------------------------------------------------------------- faults of a rule


class SortedDraw(RrsWor):
    """Siblings re-sorted by draft probability after they were drawn."""

    def draw(self, rows, num_children, uniforms):
        drafted = super().draw(rows, num_children, uniforms)
        order = at(rows.probs, drafted.tokens).argsort(1, descending=True)
        return drafted._replace(tokens=drafted.tokens.gather(1, order))


class SwappedHubDraw(SpecHub):
    """The hub always in slot 0, whatever was drawn first."""

    def draw(self, rows, num_children, uniforms):
        tokens, live, hub = super().draw(rows, num_children, uniforms)
        if tokens.shape[1] == 2:
            swap = (hub == 1)[:, None]
            tokens = torch.where(swap, tokens.flip(1), tokens)
            hub = torch.where(hub == 1, 0, hub)
        return Drafted(tokens, live, hub)


def repeats(drafted):
    """[b, k] bool: an earlier sibling holds the same token."""
    same = drafted.tokens[:, :, None] == drafted.tokens[:, None, :]
    return same.tril(-1).any(-1)


class MergedSiblings(Rrs):
    """A duplicate sibling counts as the child it repeats: it is never tried."""

    def draw(self, rows, num_children, uniforms):
        drafted = super().draw(rows, num_children, uniforms)
        return drafted._replace(live=drafted.live & ~repeats(drafted))


class SkippedDuplicate(Rrs):
    """A duplicate sibling is rejected as it should be, but without updating the residual."""

    def plan(self, target, draft, drafted, budget):
        return super().plan(
            target, draft, drafted._replace(live=drafted.live & ~repeats(drafted)), budget
        )


class NotRenormalised(Rrs):
    """The residual is compared with q without being normalised first."""

    def plan(self, target, draft, drafted, budget):
        residual = target.probs * budget[:, None]
        budgets = []
        for slot in range(drafted.tokens.shape[1]):
            token, live = drafted.tokens[:, slot], drafted.live[:, slot]
            budgets.append(ratio(at(residual, token), at(draft.probs, token)))
            updated = positive_part(residual - draft.probs)
            residual = torch.where(live[:, None], updated, residual)
        return finish(target, draft, drafted, torch.stack(budgets, 1), residual, 1 - budget)


class BonusFromTarget(RrsWor):
    """The bonus after a rejection is drawn from the target row, not from the residual."""

    def plan(self, target, draft, drafted, budget):
        return super().plan(target, draft, drafted, budget)._replace(residual=target.probs)


class FullDraftInTest(RrsWor):
    """Acceptance without replacement tested against q, not against q without the drawn tokens."""

    def plan(self, target, draft, drafted, budget):
        return plan_recursive(target, draft, drafted, budget, lambda slot: draft.probs)


class ExhaustedInIndexOrder(RrsWor):
    """When the support is used up, the next child is the lowest token id left, not uniform."""

    def draw(self, rows, num_children, uniforms):
        drafted = super().draw(rows, num_children, uniforms)
        tokens = drafted.tokens.clone()
        for slot in range(1, tokens.shape[1]):
            tried = tokens[:, :slot]
            none_left = mask_tokens(rows.logits, tried).amax(-1) == -torch.inf
            lowest = mask_tokens(torch.zeros_like(rows.logits), tried).argmax(-1)
            tokens[:, slot] = torch.where(none_left, lowest, tokens[:, slot])
        return drafted._replace(tokens=tokens)


class IndependentDraw(RrsWor):
    """The draw of rrs under the acceptance of rrs_wor."""

    def draw(self, rows, num_children, uniforms):
        return draw_independent(rows, num_children, uniforms)


class WithoutReplacementDraw(Rrs):
    """The draw of rrs_wor under the acceptance of rrs."""

    def draw(self, rows, num_children, uniforms):
        return RrsWor().draw(rows, num_children, uniforms)


class TopDraw(Rrs):
    """The deterministic top-k under the acceptance of rrs: q is not what was sampled."""

    def draw(self, rows, num_children, uniforms):
        return TargetMatch().draw(rows, num_children, uniforms)


class RecomputedHub(SpecHub):
    """The hub found again at acceptance, with ties broken the other way."""

    def plan(self, target, draft, drafted, budget):
        size = draft.logits.shape[1]
        hub = (size - 1 - draft.logits.flip(1).argmax(1))[:, None]
        column = (drafted.tokens == hub).byte().argmax(1)
        column = torch.where((drafted.tokens == hub).any(1), column, drafted.hub)
        return super().plan(target, draft, drafted._replace(hub=column), budget)


class FirstDrawnFirst(SpecHub):
    """Slots always tried in draw order, also when the hub was drawn first."""

    def plan(self, target, draft, drafted, budget):
        plan = super().plan(target, draft, drafted, budget)
        slots = torch.arange(drafted.tokens.shape[1]).expand(plan.order.shape)
        return plan._replace(order=slots)


class HubTestedTwice(KHub):
    """Each hub accepted with p_h / R, as if none had been tested before it."""

    def plan(self, target, draft, drafted, budget):
        plan = super().plan(target, draft, drafted, budget)
        mass = target.probs * budget[:, None]
        hubs, is_hub = drafted.tokens[:, 1:], drafted.live[:, 1:]
        off = mask_tokens(draft.logits, hubs, is_hub).softmax(-1)
        off = torch.where(drafted.live[:, :1], off, 0.0)
        rest = exclude(positive_part(mass - off), hubs, is_hub).sum(-1, keepdim=True) + 1
        total = rest - budget[:, None] + (at(mass, hubs) * is_hub).sum(-1, keepdim=True)
        budgets = plan.budgets.clone()
        budgets[:, 1:] = ratio(at(mass, hubs), total).masked_fill(~is_hub, 0.0)
        return plan._replace(budgets=budgets)


class IndependentCoins(TargetMatch):
    """Every child accepted with its own p(x), whatever was rejected before it."""

    def plan(self, target, draft, drafted, budget):
        plan = super().plan(target, draft, drafted, budget)
        own = at(target.probs, drafted.tokens) * drafted.live
        return plan._replace(budgets=own)


class GreedySequence(KSeq):
    """g = 1: every child accepted as if it were the only one."""

    def plan(self, target, draft, drafted, budget):
        plan = super().plan(target, draft, drafted, budget)
        mass = target.probs * budget[:, None]
        return plan._replace(
            budgets=ratio(at(mass, drafted.tokens), at(draft.probs, drafted.tokens))
        )


class HubByDivision(SpecHub):
    """q~ as q / (1 - q_a), and uniform where that is 0 / 0, under an acceptance by logits."""

    def draw(self, rows, num_children, uniforms):
        drafted = super().draw(rows, num_children, uniforms)
        if drafted.tokens.shape[1] == 1:
            return drafted
        best = rows.logits.argmax(-1, keepdim=True)
        off_hub = mask_tokens(rows.logits, best)
        flat = torch.where(off_hub > -torch.inf, 0.0, off_hub)
        underflow = exclude(rows.probs, best, best >= 0).sum(-1, keepdim=True) == 0
        off_hub = torch.where(underflow, flat, off_hub).softmax(-1)
        second = inverse_cdf(off_hub, uniforms[:, 1])
        second = torch.where(drafted.hub == 0, second, drafted.tokens[:, 1])
        return drafted._replace(tokens=torch.stack([drafted.tokens[:, 0], second], 1))


# ---------------------------------------------------------------- faults of a walk


class ReusedUniform(TokenLevel):
    """The bonus is drawn with the uniform that rejected the first child."""

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        uniforms = uniforms._replace(bonus=uniforms.accept[1])
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class SharedCoin(TokenLevel):
    """One uniform decides about every child."""

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        uniforms = uniforms._replace(accept=uniforms.accept[1].expand_as(uniforms.accept))
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class DrawnCoin(TokenLevel):
    """A child is accepted with the uniform it was drawn with."""

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        accept = uniforms.accept.clone()
        exists = tree.children > 0
        accept[tree.children[exists]] = uniforms.draw[exists]
        uniforms = uniforms._replace(accept=accept)
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class KeptUniforms(TokenLevel):
    """The first step's acceptance uniforms serve every later step too."""

    kept = None

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        if self.kept is None:
            self.kept = uniforms.accept
        uniforms = uniforms._replace(accept=self.kept)
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class OwnRandomness(TokenLevel):
    """Acceptance from torch's global generator."""

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        uniforms = uniforms._replace(accept=torch.rand_like(uniforms.accept))
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class HalfNoise(TokenLevel):
    """Uniforms in fp16: 2048 values, none of which reaches the tail."""

    def propose(self, rows, num_children, uniforms):
        return super().propose(rows, num_children, uniforms.half().double())


class WrongParentRow(TokenLevel):
    """The target's row after the child decides about the child, not its parent's row."""

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        source = torch.arange(tree.parents.shape[0])
        source[tree.rows] = tree.children[:, 0]
        target_rows = target_rows.select(source)
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class CousinRow(TokenLevel):
    """Draft rows of one level in the wrong order."""

    def verify(self, tree, drafted, target_rows, draft_rows, uniforms):
        last = tree.rows.shape[0] - 1
        if last > 1:
            order = torch.arange(last + 1)
            order[last - 1], order[last] = last, last - 1
            draft_rows = draft_rows.select(order)
        return super().verify(tree, drafted, target_rows, draft_rows, uniforms)


class StopWithBudget(Traversal):
    """An inner node stops with its budget, as a leaf does, not with the plan's probability."""

    class _Rule:
        def __init__(self, rule):
            self.rule, self.name, self.max_children = rule, rule.name, rule.max_children

        def draw(self, *arguments):
            return self.rule.draw(*arguments)

        def plan(self, target, draft, drafted, budget):
            return self.rule.plan(target, draft, drafted, budget)._replace(stop=budget)

    def __init__(self, rule):
        super().__init__(self._Rule(rule))


class UnconditionalBudgets(StopWithBudget):
    """A child's budget not divided by the mass its older siblings left."""

    class _Rule(StopWithBudget._Rule):
        def plan(self, target, draft, drafted, budget):
            plan = self.rule.plan(target, draft, drafted, budget)
            tried = plan.budgets.gather(1, plan.order)
            left = (1 - tried).cumprod(1)
            left = torch.cat([torch.ones_like(left[:, :1]), left[:, :-1]], 1)
            return plan._replace(
                budgets=torch.zeros_like(tried).scatter(1, plan.order, tried * left)
            )
