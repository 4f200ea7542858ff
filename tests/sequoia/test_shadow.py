"""A foreign package under one of our names is refused with the cause and the way out."""

import sys

import pytest

from sequoia._shadow import refuse_foreign_packages


def test_our_own_packages_pass():
    refuse_foreign_packages()


@pytest.mark.parametrize("name", ["verifiers", "tree_builder", "model_fi"])
def test_a_foreign_package_is_named_and_never_imported(name, tmp_path, monkeypatch):
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported a foreign package')\n")
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ImportError, match=f"'{name}'.*{package}.*uninstall"):
        refuse_foreign_packages()
