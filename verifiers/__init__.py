"""Verifiers: how the children of a tree node are drawn, and which of them are accepted."""

from .base import Drafted, Plan, Rule, Uniforms, Verdict, Verifier
from .probs import DeferredRows, Rows, Sampling, coin, inverse_cdf, make_rows

__sequoia__ = True  # tells this package from the unrelated PyPI project of the same name

__all__ = [
    "DeferredRows",
    "Drafted",
    "Plan",
    "Rows",
    "Rule",
    "Sampling",
    "Uniforms",
    "Verdict",
    "Verifier",
    "coin",
    "inverse_cdf",
    "make_rows",
]
