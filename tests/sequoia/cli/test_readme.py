"""The README's code runs, its commands exist, and its map names real files."""

import re
import shlex
from pathlib import Path

import sequoia
import sequoia.pair
from sequoia.cli import COMMANDS, main

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language: every second piece between the fences."""
    fenced = re.split(r"^```", README, flags=re.M)[1::2]
    return [text.partition("\n")[2] for text in fenced if text.partition("\n")[0] == language]


def test_the_python_example_runs(target, draft, monkeypatch, capsys):
    pair = sequoia.load_pair(target, draft)
    monkeypatch.setattr(sequoia.pair, "load_pair", lambda *_: pair)
    (code,) = blocks("python")
    names: dict = {}
    exec(code, names)
    output = names["output"]
    printed = capsys.readouterr().out
    assert output.text
    assert printed.startswith(output.text)
    assert f"{output.tokens_per_step} {output.finish_reason}\n" in printed


def test_every_command_and_option_exists():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    calls = [shlex.split(line, comments=True) for line in lines if line.startswith("sequoia ")]
    assert {"generate", "chat", "info", "show"} <= {call[1] for call in calls} <= set(COMMANDS)
    for _, name, *arguments in calls:
        command = main.get_command(None, name)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known


def test_the_map_names_files_that_exist():
    (text,) = [block for block in blocks("") if "TreeTopology" in block]
    folder = None
    for line in text.splitlines():
        if not line.startswith(" "):
            folder = ROOT / line.split()[0]
            assert folder.is_dir(), folder
            continue
        for name in re.findall(r"^\s+([\w/]+\.py(?:, [\w/]+\.py)*|cli/)", line)[0].split(", "):
            assert (folder / name).exists(), f"{folder}/{name}"
