"""profile, tree and tune on tiny models: files that fit together, continued runs, bad input."""

import json
from pathlib import Path

import pytest
import torch

from tree_builder import AcceptanceTable, LatencyCurves, expected_tokens, load_tree

SMALL = ["--new-tokens", "10", "--prompts", "2", "--max-children", "2", "--positions", "5"]
TIMES = ["--max-nodes", "6", "--context", "16"]
VECTOR = [0, 0.6342, 0.1079, 0.0570, 0.0225]


@pytest.fixture
def quick_clock(monkeypatch):
    """One call per point: what is tested is not the numbers."""
    from sequoia.profiling import Clock, LatencySettings

    original = LatencySettings.__init__

    def init(self, *arguments, **named):
        original(self, *arguments, **named)
        object.__setattr__(self, "clock", Clock(seconds=0.0, least=1, most=1))

    monkeypatch.setattr(LatencySettings, "__init__", init)


@pytest.fixture
def vector(tmp_path):
    path = tmp_path / "vector.pt"
    torch.save(torch.tensor(VECTOR), path)
    return path


def test_profile_writes_tables_and_curves_that_tree_takes(run, pair_options, tmp_path, quick_clock):
    out = tmp_path / "p"
    result = run("profile", *SMALL, *TIMES, "--out", str(out), "--plot", *pair_options)
    assert result.exit_code == 0, result.output
    table = AcceptanceTable.load(out / "acceptance-rrs_wor.json")
    assert table.num_depths == 4
    assert table.max_children == 2
    assert table.standard_errors is not None
    assert table.provenance["source"] == "the target's own answers"
    assert LatencyCurves.load(out / "latency.json").max_tokens == 6
    assert "<svg" in (out / "acceptance.svg").read_text()
    assert "<svg" in (out / "latency.svg").read_text()

    found = tmp_path / "tree.json"
    result = run(
        "tree", "--acceptance", str(out / "acceptance-rrs_wor.json"),
        "--latency", str(out / "latency.json"), "--out", str(found),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "tokens/s predicted" in result.stdout
    assert load_tree(found).size <= 6


def test_profile_live_serves_traversal(run, pair_options, tmp_path):
    result = run(
        "profile", "live", *SMALL, "--tree", "kary:2^2", "--verifier", "rrs_wor/traversal",
        "--out", str(tmp_path / "p"), *pair_options,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    table = AcceptanceTable.load(tmp_path / "p" / "acceptance-rrs_wor-traversal-live.json")
    assert table.provenance["how"] == "live"
    assert table.provenance["tree"] == "kary:2^2"


def test_profile_on_a_text_file(run, pair_options, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog")
    out = tmp_path / "p"
    result = run("profile", "acceptance", *SMALL, "--text", str(text), "--out", str(out),
                 "--temperature", "0", *pair_options)  # fmt: skip
    assert result.exit_code == 0, result.output
    table = AcceptanceTable.load(out / "acceptance-greedy.json")
    assert table.provenance["source"] == "text.txt"
    assert table.provenance["texts"] == 2


def test_tune_chooses_checks_and_generate_reads_the_result(
    run, pair_options, tmp_path, quick_clock
):
    out = tmp_path / "tuned.json"
    command = ["tune", *SMALL, *TIMES, "--check", "1", "--out", str(out), "--plot", *pair_options]
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "predicted" in result.stdout
    assert "speed-up" in result.stdout
    data = json.loads(out.read_text())
    assert data["format"] == "tune-result"
    assert data["prediction"]["speed_up"] >= 1
    assert data["measurement"]["speed_up"] > 0
    assert data["provenance"]["sampling"]["temperature"] == 1.0
    assert (tmp_path / "tuned" / "sizes.svg").exists()

    before = {path: path.stat().st_size for path in (tmp_path / "tuned").glob("*.jsonl")}
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert {p: p.stat().st_size for p in (tmp_path / "tuned").glob("*.jsonl")} == before
    assert json.loads(out.read_text())["parents"] == data["parents"]

    for tree in (f"auto:{out}", str(out)):
        result = run("generate", "--prompt", "Hi", "--max-new-tokens", "5", "--json",
                     "--tree", tree, *pair_options)  # fmt: skip
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout.splitlines()[-1])["tree_nodes"] == len(data["parents"])


def test_another_temperature_does_not_continue_the_same_folder(
    run, refused, pair_options, tmp_path
):
    command = ["profile", "acceptance", *SMALL, "--out", str(tmp_path), *pair_options]
    assert run(*command).exit_code == 0
    result = run(*command, "--temperature", "0.5")
    assert result.exit_code == 2
    assert "temperature" in result.stderr.splitlines()[-1]


def tuned(path, parents, verifier="rrs", **about):
    data = {"format": "tune-result", "verifier": verifier, "parents": parents, "provenance": about}
    path.write_text(json.dumps(data))
    return f"auto:{path}"


def test_a_tree_tuned_for_other_models_says_so(run, pair_options, tmp_path):
    common = ["generate", "--prompt", "Hi", "--max-new-tokens", "5", *pair_options]
    target = Path(pair_options[pair_options.index("--target") + 1])
    same = tuned(tmp_path / "same.json", [-1, 0], target=f"elsewhere/{target.name}")
    assert "other models" not in run(*common, "--tree", same).stderr
    other = tuned(tmp_path / "other.json", [-1, 0], target=str(target), draft="some/other")
    result = run(*common, "--tree", other)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("other models (draft some/other)") == 1


def test_a_tuned_tree_brings_its_verifier(run, pair_options, tmp_path):
    tree = tuned(tmp_path / "t.json", [-1, 0, 0], "spechub")
    common = ["generate", "--prompt", "Hi", "--max-new-tokens", "5", "--json", *pair_options]
    record = json.loads(run(*common, "--tree", tree).stdout.splitlines()[-1])
    assert record["verifier"] == "spechub"
    record = json.loads(run(*common, "--tree", tree, "--verifier", "rrs").stdout.splitlines()[-1])
    assert record["verifier"] == "rrs"


def test_no_speculation_is_a_result_that_generate_takes(run, pair_options, tmp_path):
    tree = tuned(tmp_path / "t.json", [-1])
    result = run("generate", "--prompt", "Hi", "--max-new-tokens", "5", "--temperature", "0",
                 "--json", "--compare", "--tree", tree, *pair_options)  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert record["tokens_per_step"] == 1.0
    assert record["same_as_autoregressive"] is True


def test_auto_files_that_are_none(refused, pair_options, tmp_path):
    plain, odd = tmp_path / "plain.json", tmp_path / "odd.json"
    plain.write_text('{"parents": [-1, 0]}')
    tuned(odd, [-1, 0])
    odd.write_text(odd.read_text().replace('"provenance": {}', '"provenance": "mine"'))
    files = ((plain, "sequoia tune"), (odd, "sequoia tune"), (tmp_path / "no.json", "no tree file"))
    for name, word in files:
        line = refused("generate", "--prompt", "x", "--tree", f"auto:{name}", *pair_options)
        assert word in line
        assert name.name in line


def test_tree_prints_every_family_and_writes_both_formats(run, vector, tmp_path):
    files = [tmp_path / "t.json", tmp_path / "t.pt"]
    picture, plot = tmp_path / "t.svg", tmp_path / "sizes.png"
    result = run(
        "tree", "--acceptance", str(vector), "--nodes", "12", "--picture", str(picture),
        "--plot", str(plot), *[word for file in files for word in ("--out", str(file))],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for word in ("best tree", "k-ary", "chain", "independent chains", "12 nodes"):
        assert word in result.stdout
    trees = [load_tree(file) for file in files]
    assert trees[0] == trees[1]
    assert f"{expected_tokens(trees[0], VECTOR):.4f}" in result.stdout
    assert picture.exists()
    assert plot.exists()


def test_tree_answers_upstreams_configuration(run, vector, tmp_path):
    config = {
        "acceptance_rate_vector": "vector.pt", "max_depth": 10, "max_budget": 128,
        "draft_time": 0.3, "valid_budget": [1, 2, 4, 8, 16, 32],
        "target_time": [10, 10, 10, 12, 14, 18], "dst": str(tmp_path / "out.pt"),
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    result = run("tree", "--config", str(path))
    assert result.exit_code == 0, result.output
    assert "budget 4, 4 levels" in result.stdout
    assert "2.0460 times faster" in result.stdout
    assert load_tree(tmp_path / "out.pt").size == 4


def test_show_values_a_tree(run, vector, tmp_path):
    path = tmp_path / "t.png"
    result = run("show", "chain:3", "--acceptance", str(vector), "--picture", str(path))
    assert result.exit_code == 0, result.output
    assert f"{1 + 0.6342 + 0.6342**2:.4f} expected tokens per step" in result.stdout
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tree"], ["--acceptance", "--config"]),
        (["tree", "--acceptance", "VECTOR", "--nodes", "0"], ["at least 1", "0"]),
        (["tree", "--acceptance", "VECTOR", "--max-levels", "0"], ["max_levels", "0"]),
        (["tree", "--acceptance", "VECTOR", "--out", "x.txt"], ["x.txt", ".json or .pt"]),
        (["tree", "--acceptance", "missing.pt"], ["missing.pt"]),
        (["tune", "--out", "x.pt"], ["x.pt", ".json"]),
        (["tune", "--verifier", "magic"], ["'magic'", "rrs_wor"]),
        (["tune", "--temperature", "-1"], ["temperature", "-1"]),
        (["profile", "speed"], ["speed", "latency"]),
        (["profile", "acceptance", "--kind", "poem"], ["'poem'", "story"]),
        (["profile", "latency", "--context", "5000", "PAIR"], ["5000", "256"]),
        (["profile", "--target", "missing", "--draft", "none"], ["--draft none"]),
        (["tune", "--target", "missing", "--draft", "none"], ["--draft none"]),
        (["profile", "live", "--tree", "chain:1", "PAIR"], ["single node"]),
        (["show", "chain:3", "--picture", "x.gif"], ["x.gif", ".svg or .png"]),
    ],
)
def test_bad_requests_end_with_one_line(
    run, pair_options, vector, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    arguments = [str(vector) if word == "VECTOR" else word for word in arguments]
    if "PAIR" in arguments:
        arguments.remove("PAIR")
        arguments = [*arguments[:1], *pair_options, *arguments[1:]]
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("vector", "word"),
    [
        ([0, 0.5, -0.1], "-0.1"),
        ([0, float("nan")], "nan"),
        ([0, 0.9, 0.9], "1.8"),
        ([], "empty"),
        ([0.5, 0.2], "0.5"),
    ],
)
def test_bad_vectors_are_named(refused, tmp_path, vector, word):
    path = tmp_path / "bad.pt"
    torch.save(torch.tensor(vector), path)
    assert word in refused("tree", "--acceptance", str(path))


def test_an_unsafe_file_is_refused(refused, tmp_path):
    import pickle

    path = tmp_path / "unsafe.pt"
    path.write_bytes(pickle.dumps(print))
    assert "refused" in refused("tree", "--acceptance", str(path))
