"""check_lossless: a proof by enumeration, on toy models, that a verifier keeps the target's law.

For third parties' objects as for ours: anything with ``propose`` and ``verify`` that makes its
random decisions through :func:`verifiers.inverse_cdf` and :func:`verifiers.coin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .base import Verifier, check_members
from .check_cases import Case, Context, Policy, Toy, standard_cases
from .check_step import Broken, follow, step
from .enumeration import UnknownUniform, World


@dataclass(frozen=True)
class Failure:
    """Where the law is broken. ``context``: tokens emitted before ``token``; both None where the
    fault is not at a token (``message`` then says what happened)."""

    case: str
    tree: tuple[int, ...]
    context: Context | None
    token: int | None
    expected: float
    got: float
    message: str

    def __str__(self) -> str:
        where = f"{self.case}, tree {list(self.tree)}"
        if self.token is None:
            return f"{where}: {self.message}"
        return (
            f"{where}, row after {list(self.context or ())}, token {self.token}: "
            f"probability {self.got:.12g}, target {self.expected:.12g}"
        )


@dataclass
class Report:
    """ok: nothing failed; failures: the first of each failing case; worlds: outcomes enumerated;
    largest_error: over all strings of all cases that ran to the end."""

    verifier: str
    failures: list[Failure] = field(default_factory=list)
    cases: int = 0
    worlds: int = 0
    largest_error: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failures and self.cases > 0

    def __str__(self) -> str:
        lines = [
            f"{self.verifier}: {'lossless' if self.ok else 'NOT lossless'}, {self.cases} cases, "
            f"{self.worlds} worlds, largest error {self.largest_error:.1e}"
        ]
        return "\n".join(lines + [f"  {failure}" for failure in self.failures])


def check_lossless(
    verifier: Verifier,
    *,
    thorough: bool = False,
    policy: Policy | None = None,
    cases: Sequence[Case] | None = None,
    tolerance: float = 1e-9,
    max_failures: int = 1,
) -> Report:
    """Is the joint law of all tokens emitted over two steps exactly the target's?

    For every case (a pair of trees, a toy target and draft whose rows depend on the whole past)
    all worlds are enumerated. With W(s) the probability that two steps emit exactly the string s,
    every string y must satisfy ``sum over prefixes s of y of W(s) p(y after s) = p(y)``.

    Steps of a ``joint`` case run in one world, so that anything kept between steps shows. In the
    others the second step is enumerated once per distinct state the first one leads to (the toy
    models look back two tokens), with the verifier as it was given.

    verifier: see :class:`Verifier`; one with ``name == "greedy"`` is held to T = 0 rows. Trees with
    more children than its ``max_children`` are left out.
    thorough: more and larger cases (minutes). cases: instead of the standard ones.
    policy: adaptive growth, (depth, contexts of the nodes of that level) -> number of children of
    each; replaces the shapes of the cases' trees.
    tolerance: largest error of a string's probability. max_failures: stop after that many cases.
    ValueError for an object that is no verifier.
    """
    check_members(verifier)
    report = Report(verifier.name)
    if cases is None:
        cases = standard_cases(
            verifier.max_children, greedy=report.verifier == "greedy", thorough=thorough
        )
    for case in cases:
        report.cases += 1
        state = torch.get_rng_state()
        try:
            failure, error = _check_case(verifier, case, policy, tolerance, report)
            report.largest_error = max(report.largest_error, error)
        except (Broken, UnknownUniform) as problem:
            failure = _failure(case, str(problem))
        except Exception as problem:
            failure = _failure(case, f"raised {type(problem).__name__}: {problem}")
        if failure is None and not torch.equal(state, torch.get_rng_state()):
            failure = _failure(case, "draws from torch's global generator")
        if failure is not None:
            report.failures.append(failure)
            if len(report.failures) >= max_failures:
                break
    return report


def _failure(case: Case, message: str) -> Failure:
    return Failure(case.name, case.trees[0].parents, None, None, 0.0, 0.0, message)


def _check_case(
    verifier: Verifier, case: Case, policy: Policy | None, tolerance: float, report: Report
) -> tuple[Failure | None, float]:
    """Enumerate two steps; the first string whose probability is off, and the largest error."""
    emitted: dict[Context, float] = defaultdict(float)  # W
    start = World(1.0, {}, verifier)
    plans = [policy or follow(tree) for tree in case.trees]
    second: dict[Context, dict[Context, float]] = {}  # law of the second step by state
    for world, text in step(start, case.toy, (), plans[0], 0):
        report.worlds += 1
        state = case.toy.state(text)
        if case.joint or state not in second:
            second[state] = defaultdict(float)
            before = world._replace(weight=1.0) if case.joint else start
            for end, more in step(before, case.toy, text, plans[1], 1):
                second[state][more] += end.weight
                report.worlds += 1
        for more, weight in second[state].items():
            emitted[text + more] += world.weight * weight
    error, context, token, expected, got = _largest_error(case.toy, emitted, tolerance)
    if error <= tolerance:
        return None, error
    return Failure(case.name, case.trees[0].parents, context, token, expected, got, ""), error


# ---------------------------------------------------------------- the law


def _largest_error(
    toy: Toy, emitted: dict[Context, float], tolerance: float
) -> tuple[float, Context, int, float, float]:
    """The first string (breadth-first) that is off by more than the tolerance, else the worst.

    A string's probability is the mass emitted through it (W of all its extensions) plus the mass
    that stopped before and is continued by the target. Strings below one that nothing was emitted
    through follow from it, so only the emitted strings and their siblings need a look.
    """
    through: dict[Context, float] = defaultdict(float)
    for text, weight in emitted.items():
        for length in range(len(text) + 1):
            through[text[:length]] += weight
    if abs(through[()] - 1.0) > tolerance:
        raise Broken(f"the probabilities of all worlds add up to {through[()]}")
    worst: tuple[float, Context, int, float, float] = (0.0, (), 0, 0.0, 0.0)
    queue: list[tuple[Context, float, float]] = [((), 1.0, 0.0)]  # text, p(text), stopped before
    for text, law, stopped in queue:
        stopped += emitted.get(text, 0.0)
        for token, p in enumerate(toy.target_rows([text]).probs[0].tolist()):
            longer = (*text, token)
            got, expected = through.get(longer, 0.0) + stopped * p, law * p
            if abs(got - expected) > worst[0]:
                worst = (abs(got - expected), text, token, expected, got)
                if worst[0] > tolerance:
                    return worst
            if longer in through:
                queue.append((longer, expected, stopped * p))
    return worst


__all__ = ["Case", "Failure", "Report", "check_lossless"]
