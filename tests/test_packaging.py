"""What the distribution installs, and that the pins agree with each other."""

import re
from pathlib import Path
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """The keyword arguments with which ``setup.py`` calls ``setup``."""
    calls: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **kwargs: calls.append(kwargs))
        patch.chdir(ROOT)
        code = compile((ROOT / "setup.py").read_text(), str(ROOT / "setup.py"), "exec")
        exec(code, {"__file__": str(ROOT / "setup.py"), "__name__": "__main__"})
    (kwargs,) = calls
    return kwargs


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(
        re.match(r"([\w-]+)==([\w.]+)", line).groups()  # type: ignore[union-attr]
        for line in lines
        if line and not line.startswith("#")
    )


def test_exactly_our_four_packages_are_installed(metadata):
    assert {name.split(".")[0] for name in metadata["packages"]} == {
        "sequoia",
        "tree_builder",
        "verifiers",
        "model_fi",
    }


def test_every_python_folder_of_the_packages_is_installed(metadata):
    for name in {name.split(".")[0] for name in metadata["packages"]}:
        for module in (ROOT / name).rglob("*.py"):
            assert ".".join(module.relative_to(ROOT).parent.parts) in metadata["packages"]


def test_every_data_file_is_installed(metadata):
    package = ROOT / "sequoia"
    patterns = metadata["package_data"]["sequoia"]
    shipped = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    present = {
        path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert package / "data" / "prompts.jsonl" in present
    assert shipped == present


def test_floors(metadata):
    assert metadata["python_requires"] == ">=3.10"
    assert {"torch>=2.6", "transformers>=4.57"} <= set(metadata["install_requires"])


def test_everything_required_is_pinned(metadata):
    extras = metadata["extras_require"]
    wanted = metadata["install_requires"] + extras["dev"] + extras["experiments"]
    pinned = pins("constraints.txt")
    assert [spec for spec in wanted if re.split("[><=]", spec)[0] not in pinned] == []


def test_the_pin_of_torch_is_the_same_everywhere():
    makefile = re.search(r"^TORCH := torch==([\d.]+)", (ROOT / "Makefile").read_text(), re.M)
    assert makefile is not None
    assert pins("constraints.txt")["torch"] == makefile.group(1)
    assert pins("constraints-floor.txt")["torch"] == makefile.group(1)


def test_the_floor_of_transformers_is_what_test_floor_installs():
    assert pins("constraints-floor.txt")["transformers"].startswith("4.57.")
