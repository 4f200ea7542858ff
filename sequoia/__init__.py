"""Tree-based speculative decoding: a small draft model proposes a tree, the target decides.

The loop is :mod:`sequoia.decoder`; the command line is ``sequoia --help``.
"""

from sequoia._shadow import refuse_foreign_packages
from sequoia.version import __version__

refuse_foreign_packages()

__all__ = ["__version__"]
