"""A record says where it was made, in plain JSON."""

import json
import subprocess

import pytest
import torch

from sequoia import provenance


def test_a_record_is_json_and_keeps_what_it_is_given():
    record = provenance.collect(
        device=torch.device("cpu"), dtype=torch.bfloat16, seed=3, tree="chain:5", verifier="rrs"
    )
    assert json.loads(json.dumps(record)) == record
    assert record["dtype"] == "bfloat16"
    assert record["device"].startswith("cpu (")
    assert (record["seed"], record["tree"], record["verifier"]) == (3, "chain:5", "rrs")
    assert record["versions"]["torch"] == torch.__version__
    assert record["threads"] == torch.get_num_threads()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "first")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return tmp_path


def test_the_commit_of_a_checkout_says_whether_files_changed(checkout):
    clean = provenance.commit()
    assert clean is not None
    assert len(clean) == 40
    (checkout / "untracked").write_text("does not matter")
    assert provenance.commit() == clean
    (checkout / "file").write_text("two")
    assert provenance.commit() == f"{clean}+changes"


def test_an_installed_release_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() is None


def test_the_command_can_be_pasted_into_a_shell(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/sequoia", "generate", "--prompt", "it's me"])
    assert provenance.command() == """sequoia generate --prompt 'it'"'"'s me'"""
    monkeypatch.setattr("sys.argv", ["/somewhere/sequoia/__main__.py", "show"])
    assert provenance.command() == "python -m sequoia show"
