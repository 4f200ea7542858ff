"""Tree-based speculative decoding: a small draft model proposes a tree, the target decides.

The loop is :mod:`sequoia.decoder`; the command line is ``sequoia --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sequoia._shadow import refuse_foreign_packages
from sequoia.version import __version__

if TYPE_CHECKING:
    from sequoia.baseline import AutoregressiveDecoder
    from sequoia.config import SamplingParams
    from sequoia.decoder import SpeculativeDecoder
    from sequoia.outputs import GenerationOutput, StepRecord
    from sequoia.pair import Pair, load_pair

refuse_foreign_packages()

__all__ = [
    "AutoregressiveDecoder",
    "GenerationOutput",
    "Pair",
    "SamplingParams",
    "SpeculativeDecoder",
    "StepRecord",
    "__version__",
    "load_pair",
]

_HOMES = {
    "AutoregressiveDecoder": "baseline",
    "GenerationOutput": "outputs",
    "Pair": "pair",
    "SamplingParams": "config",
    "SpeculativeDecoder": "decoder",
    "StepRecord": "outputs",
    "load_pair": "pair",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``sequoia --help`` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sequoia' has no attribute {name!r}")
    return getattr(import_module(f"sequoia.{_HOMES[name]}"), name)
