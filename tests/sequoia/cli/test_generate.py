"""``sequoia generate``: text on stdout, the table on stderr, numbers that agree with each other."""

import json

import pytest

FAST = ["--max-new-tokens", "12", "--tree", "kary:2^3"]


def last_json(result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_text_goes_to_stdout_and_the_table_to_stderr(run, pair_options):
    result = run("generate", "--prompt", "Hello", "--seed", "3", *FAST, *pair_options)
    assert result.exit_code == 0, result.output
    assert "tokens per step" not in result.stdout
    for name in ("new tokens", "tokens per step", "tokens/s", "tree", "verifier", "kary:2^3"):
        assert name in result.stderr


def test_json_is_the_last_line_and_holds_the_text_that_was_streamed(run, pair_options):
    result = run("generate", "--prompt", "Hello", "--seed", "3", "--json", *FAST, *pair_options)
    record = last_json(result)
    assert result.stdout.startswith(record["text"] + "\n")
    assert record["new_tokens"] == len(record["token_ids"]) == 12
    assert record["steps"] == len(record["accepted_per_step"])
    assert record["tokens_per_step"] == pytest.approx(12 / record["steps"], abs=1e-3)
    assert record["tokens_per_second"] == pytest.approx(12 / record["seconds"], rel=0.05)
    assert record["finish_reason"] == "length"
    assert "speedup_vs_autoregressive" not in record


def test_json_says_where_the_numbers_come_from(run, pair_options):
    record = last_json(run("generate", "--prompt", "Hi", "--json", *FAST, *pair_options))
    assert {"commit", "versions", "command", "threads"} <= set(record)
    assert record["device"].startswith("cpu")
    assert record["dtype"] == "float32"
    assert record["tree"] == "kary:2^3"
    assert record["tree_nodes"] == 7
    assert record["verifier"] == "rrs_wor"
    assert record["seed"] >= 0


def test_compare_decodes_as_many_tokens_and_finds_the_same_greedy_text(run, pair_options):
    record = last_json(
        run("generate", "--prompt", "Hello", "--temperature", "0", "--compare", "--json", *FAST,
            *pair_options)
    )  # fmt: skip
    assert record["same_as_autoregressive"] is True
    assert record["speedup_vs_autoregressive"] == pytest.approx(
        record["tokens_per_second"] / record["autoregressive_tokens_per_second"], rel=1e-2
    )
    assert record["verifier"] == "greedy (rrs_wor at T = 0)"


def test_compare_shows_both_columns(run, pair_options):
    result = run("generate", "--prompt", "Hi", "--compare", *FAST, *pair_options)
    assert "autoregressive" in result.stderr
    assert "speed-up" in result.stderr
    assert "same text" not in result.stderr  # at T > 0 the two texts are two draws


def test_one_seed_one_text(run, pair_options):
    def text(seed: str) -> str:
        return last_json(
            run("generate", "--prompt", "Hi", "--seed", seed, "--json", *FAST, *pair_options)
        )["text"]

    assert text("5") == text("5") != text("6")


def test_prompt_from_file_and_from_stdin_are_the_same_prompt(run, pair_options, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Grüße aus Köln\n", encoding="utf-8")
    options = ["--seed", "1", "--json", *FAST, *pair_options]
    from_file = last_json(run("generate", "--file", str(path), *options))
    from_stdin = last_json(run("generate", *options, stdin="Grüße aus Köln\n"))
    given = last_json(run("generate", "--prompt", "Grüße aus Köln", *options))
    assert from_file["token_ids"] == from_stdin["token_ids"] == given["token_ids"]
    assert from_file["prompt_tokens"] == len("Grüße aus Köln".encode())


def test_chat_applies_the_template_once(run, pair_options):
    record = last_json(run("generate", "--prompt", "Hi", "--chat", "--json", *FAST, *pair_options))
    assert record["prompt_tokens"] == 1 + len("user: Hi\nassistant: ")  # <s> is one token


def test_stop_text_is_not_shown(run, pair_options):
    free = last_json(
        run("generate", "--prompt", "Hi", "--temperature", "0", "--json", *FAST, *pair_options)
    )
    stop = next(letter for letter in free["text"] if letter.isascii() and letter.isprintable())
    record = last_json(
        run("generate", "--prompt", "Hi", "--temperature", "0", "--json", "--stop", stop, *FAST,
            *pair_options)
    )  # fmt: skip
    assert record["finish_reason"] == "stop"
    assert record["text"] == free["text"].partition(stop)[0]


def test_draft_none_decodes_one_token_a_step(run, target):
    record = last_json(
        run("generate", "--prompt", "Hi", "--json", "--max-new-tokens", "5", "--target", target,
            "--draft", "none", "--temperature", "0")
    )  # fmt: skip
    assert record["steps"] == record["new_tokens"] == 5
    assert record["draft"] is None


def test_threads_are_set_and_recorded(run, pair_options):
    record = last_json(
        run("generate", "--prompt", "Hi", "--threads", "1", "--json", *FAST, *pair_options)
    )
    assert record["threads"] == 1


def test_an_unchosen_tree_is_named_with_the_way_to_choose_one(run, pair_options):
    result = run("generate", "--prompt", "Hi", "--max-new-tokens", "4", *pair_options)
    assert result.exit_code == 0, result.output
    assert "note: no tree has been chosen for this pair" in result.stderr
    assert "sequoia tune" in result.stderr


def test_an_interrupt_keeps_the_text_and_exits_130(run, pair_options, monkeypatch):
    from sequoia.decoder import SpeculativeDecoder

    advance, calls = SpeculativeDecoder.advance, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return advance(*args, **kwargs)

    monkeypatch.setattr(SpeculativeDecoder, "advance", interrupted)
    result = run("generate", "--prompt", "Hi", "--seed", "1", "--json", *FAST, *pair_options)
    assert result.exit_code == 130
    record = json.loads(result.stdout.splitlines()[-1])
    assert record["finish_reason"] == "interrupt"
    assert record["steps"] == 2
    assert result.stdout.startswith(record["text"])
    assert record["new_tokens"] >= 2


def test_explaining_a_divergence_says_that_there_is_none(run, pair_options):
    options = ["--temperature", "0", "--compare", "--explain-divergence", *FAST, *pair_options]
    result = run("generate", "--prompt", "Hello", *options)
    assert result.exit_code == 0, result.output
    assert "the texts do not differ" in result.stderr


def test_a_divergence_is_explained(run, pair_options, monkeypatch):
    from sequoia import divergence

    find = divergence.find_divergence

    def other_text(plain, ids, tokens, plain_tokens):
        return find(plain, ids, [*tokens[:3], (tokens[3] + 1) % 50], plain_tokens)

    monkeypatch.setattr(divergence, "find_divergence", other_text)
    options = ["--temperature", "0", "--compare", "--explain-divergence", *FAST, *pair_options]
    result = run("generate", "--prompt", "Hello", *options)
    assert "first difference at new token 3" in result.stderr
    assert "two best logits" in result.stderr


@pytest.mark.parametrize("missing", [["--compare"], ["--temperature", "0"]])
def test_explaining_a_divergence_needs_a_comparison_at_temperature_0(run, missing):
    result = run("generate", "--prompt", "Hello", "--explain-divergence", *missing)
    assert result.exit_code == 2
    assert "--explain-divergence needs --compare and --temperature 0" in result.stderr


def test_info_says_why_a_step_is_not_captured(run, pair_options):
    assert "CUDA graphs need a CUDA device" in run("info", *pair_options).stdout
    result = run("info", "--no-graphs", "--attention", "flashinfer", *pair_options)
    assert "eager (graphs switched off)" in result.stdout
    assert result.stderr.count("not FlashInfer: it needs a CUDA device") == 1
