"""The other commands, help, and what must stay true of all of them."""

import json
import re
import subprocess
import sys

import pytest

from sequoia.cli import COMMANDS
from sequoia.version import __version__


def test_show_draws_specs_and_files(run, tmp_path):
    from tree_builder import load_tree, save_tree

    path = tmp_path / "tree.json"
    save_tree(load_tree("kary:2^3"), path)
    from_spec, from_file = run("show", "kary:2^3"), run("show", str(path))
    assert from_spec.exit_code == from_file.exit_code == 0
    assert from_spec.stdout == from_file.stdout
    assert "7 nodes" in from_spec.stdout
    assert "└─" in from_spec.stdout


def test_show_writes_a_picture(run, tmp_path):
    path = tmp_path / "tree.svg"
    assert run("show", "chains:2x3", "--picture", str(path)).exit_code == 0
    assert "<svg" in path.read_text()


def test_info_names_everything_that_was_loaded(run, pair_options):
    result = run("info", "--tree", "kary:2^3", *pair_options)
    assert result.exit_code == 0, result.output
    for word in ("llama", "float32", "cpu", "attention", "7 nodes", "rrs_wor", "MiB predicted"):
        assert word in result.stdout


def test_the_parts_of_the_predicted_memory_add_up(run, pair_options):
    result = run("info", "--json", "--tree", "chain:3", *pair_options)
    total, *parts = re.findall(r"(\d+) MiB predicted|(?:target|draft|cache) (\d+)",
                               json.loads(result.stdout)["memory"])  # fmt: skip
    assert abs(int(total[0]) - sum(int(part[1]) for part in parts)) <= len(parts)


def test_a_model_that_is_both_roles_has_no_size_twice(run, target):
    facts = json.loads(run("info", "--json", "--target", target, "--draft", target).stdout)
    assert facts["target"].split(": ")[1] == facts["draft"].split(": ")[1]


def test_info_json_is_one_line(run, pair_options):
    result = run("info", "--json", "--tree", "chain:3", *pair_options)
    assert json.loads(result.stdout)["verifier"] == "rrs_wor"


def test_chat_keeps_the_conversation_until_reset(run, pair_options):
    result = run(
        "chat", "--max-new-tokens", "4", "--temperature", "0", "--tree", "chain:3", *pair_options,
        stdin="Hello\nHello\n/reset\nHello\n/bogus\n\n/exit\nnever read\n",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    answers = result.stdout.splitlines()
    assert len(answers) == 3
    assert answers[0] == answers[2]  # the same conversation again
    assert "/bogus is no command" in result.stderr


def test_chat_forgets_its_oldest_turns_when_it_gets_too_long(run, pair_options):
    result = run(
        "chat", "--max-new-tokens", "8", "--max-length", "128", "--tree", "chain:3", *pair_options,
        stdin="\n".join(["a" * 40] * 4) + "\n",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "oldest turns are forgotten" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"sequoia {command}" in result.stdout


def test_no_arguments_print_help_with_every_command(run):
    result = run()
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.stdout


def test_version(run):
    assert run("--version").stdout == f"sequoia, version {__version__}\n"


def test_python_dash_m_works_and_help_does_not_wait_for_torch():
    code = "import sys, runpy; sys.argv = ['sequoia', '--help']\n"
    code += "try: runpy.run_module('sequoia', run_name='__main__')\n"
    code += "except SystemExit as end: print('exit', end.code, 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Usage: sequoia" in result.stdout
    assert result.stdout.splitlines()[-1] == "exit 0 False"
