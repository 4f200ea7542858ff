"""Warm siblings: the first child from the draft q, the others from a flatter law.

The idea: once a child from q is rejected, what is left of the target lies where q is too small.
"""

import torch

from verifiers import Drafted, TokenLevel, Traversal, check_lossless, inverse_cdf
from verifiers.plans import finish, no_hub, planned
from verifiers.probs import at, positive_part, ratio


class WarmSiblings:
    """Recursive rejection: a child x drawn from the law f is accepted with min(1, r(x) / f(x)).

    r is the target's row p at first, then norm((r - f)+) after every rejection; the bonus is drawn
    from the last r. f is q for slot 0 and softmax(logits / warmth) for the others.
    """

    max_children = None  # any number

    def __init__(self, warmth=2.0):
        self.name, self.warmth = "warm_siblings", warmth

    def law(self, rows, slot):  # [b, V]
        return rows.probs if slot == 0 else (rows.logits / self.warmth).softmax(-1)

    def draw(self, rows, num_children, uniforms):
        live = planned(num_children, uniforms.device)  # [b, k], False where a row has fewer
        tokens = [
            inverse_cdf(self.law(rows, slot), uniforms[:, slot]) for slot in range(live.shape[1])
        ]
        tokens = torch.stack(tokens, 1)
        return Drafted(tokens, live, no_hub(tokens))

    def plan(self, target, draft, drafted, budget):
        # The row (A p, 1 - A on a dummy token), less what the rejected children used, unnormalised.
        residual, dummy = target.probs * budget[:, None], 1 - budget
        mass = torch.ones_like(budget)  # the sum of that row
        budgets = []
        for slot in range(drafted.tokens.shape[1]):
            token, live = drafted.tokens[:, slot], drafted.live[:, slot]
            used = self.law(draft, slot) * mass[:, None]
            budgets.append(ratio(at(residual, token), at(used, token)))
            residual = torch.where(live[:, None], positive_part(residual - used), residual)
            mass = torch.where(live, residual.sum(-1) + dummy, mass)
        return finish(target, draft, drafted, torch.stack(budgets, 1), residual, dummy)


if __name__ == "__main__":
    for walker in (TokenLevel, Traversal):
        print(check_lossless(walker(WarmSiblings())))
