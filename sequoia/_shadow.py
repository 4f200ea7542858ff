"""Refuse to start when another project's package stands where one of ours should be.

PyPI has an unrelated project that is also imported as ``verifiers``. Installed into the same
environment it overwrites ours or is found first; without this check the user would see an
``AttributeError`` far from its cause.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# A module that only our package of that name has.
_WITNESS = {"verifiers": "probs", "tree_builder": "topology", "model_fi": "kv_cache"}


def refuse_foreign_packages() -> None:
    """Raise ``ImportError`` if ``verifiers``, ``tree_builder`` or ``model_fi`` is foreign.

    Nothing is imported for the check: a foreign package may do anything when imported.
    """
    for name, witness in _WITNESS.items():
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue  # nothing there: the import itself says so
        if not Path(spec.origin).with_name(f"{witness}.py").is_file():
            raise ImportError(
                f"sequoia needs its own package '{name}', but Python finds {spec.origin}. Another "
                f"project is installed under that name (PyPI has an unrelated 'verifiers'): "
                f"uninstall it and install sequoia-spec again, or use a separate environment."
            )
