"""The distillation tool, end to end on a tiny random target."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from experiments.distill import main
from experiments.distillation.draft import Draft, DraftShape
from experiments.distillation.store import read_shard, read_store
from experiments.distillation.training import Trainer

VOCAB = 37  # of the target


def run(target_folder, out, *options):
    common = ["--target", target_folder, "--out", out, "--device", "cpu", "--lr", "0.02"]
    common += ["--batch-tokens", "64", "--warmup", "2", "--save-every", "5", "--top", "16"]
    arguments = [str(option) for option in (*common, "--evaluate-every", "5", *options)]
    return CliRunner().invoke(main, arguments)


def history(work):
    return [json.loads(line) for line in (work / "history.jsonl").read_text().splitlines()]


class TestTool:
    def test_generated_text_to_an_ordinary_model(self, target_folder, tmp_path):
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("w3 w4\nw5\n\nw6 w7 w8\nw9\n")
        options = ["--prompts", prompts, "--samples", 4, "--max-new-tokens", 12, "--steps", 20]
        options += ["--batch-size", 4, "--own-embeddings", "--width", 16, "--held-out", 0.2]
        out = tmp_path / "draft"
        result = run(target_folder, out, *options)
        assert result.exit_code == 0, result.output
        assert "agreement" in result.output
        model = LlamaForCausalLM.from_pretrained(out)
        assert model.config.hidden_size == 16
        assert model(torch.tensor([[3, 4]])).logits.shape == (1, 2, VOCAB)
        assert (out / "tokenizer.json").exists()
        assert "16" in (out / "README.md").read_text()
        work = tmp_path / "draft.work"
        assert (work / "training.png").stat().st_size > 1000
        assert len(list((work / "text").iterdir())) == 4

    def test_training_improves_the_draft_on_what_it_trained_on(self, target_folder, tmp_path):
        text = tmp_path / "text.txt"
        text.write_text(" ".join(f"w{i % 11}" for i in range(400)))
        options = ["--text", text, "--window", 20, "--steps", 60, "--head-tokens", 30]
        options += ["--held-out", 0.3]
        result = run(target_folder, tmp_path / "draft", *options)
        assert result.exit_code == 0, result.output
        measured = history(tmp_path / "draft.work")
        assert measured[-1]["overlap"] > measured[0]["overlap"] + 0.1
        assert measured[-1]["loss"] < measured[0]["loss"]

    @pytest.mark.parametrize("loss", ["kl", "kl+tv"])
    def test_a_killed_run_ends_with_the_same_weights(
        self, target_folder, text_file, tmp_path, monkeypatch, loss
    ):
        options = ["--text", text_file, "--steps", 14, "--head-tokens", 20, "--loss", loss]
        assert run(target_folder, tmp_path / "whole", *options).exit_code == 0
        update, calls = Trainer._update, []

        def killed(self, sequences):
            calls.append(1)
            if len(calls) == 8:  # after the checkpoint of step 5, between two of them
                raise KeyboardInterrupt
            return update(self, sequences)

        monkeypatch.setattr(Trainer, "_update", killed)
        assert run(target_folder, tmp_path / "broken", *options).exit_code == 130
        monkeypatch.setattr(Trainer, "_update", update)
        assert run(target_folder, tmp_path / "broken", *options).exit_code == 0
        whole = load_file(tmp_path / "whole" / "model.safetensors")
        broken = load_file(tmp_path / "broken" / "model.safetensors")
        assert whole.keys() == broken.keys()
        assert all(torch.equal(whole[name], broken[name]) for name in whole)
        assert history(tmp_path / "whole.work") == history(tmp_path / "broken.work")

    def test_only_some_of_the_text_need_be_scored(self, target_folder, text_file, tmp_path):
        options = ["--text", text_file, "--steps", 6, "--scored", 8, "--held-out", 0.3]
        result = run(target_folder, tmp_path / "draft", *options)
        assert result.exit_code == 0, result.output
        stored = list(read_store(tmp_path / "draft.work" / "targets"))
        assert len(stored) == 8
        train = [s for s in read_shard(text_file) if s.place > 0.3]
        assert f"{len(train)} sequences" in (tmp_path / "draft" / "README.md").read_text()
        options[1] = tmp_path / "draft.work" / "targets"  # a store, scores and all
        more = [*options, "--text", text_file, "--scored", 0]
        result = run(target_folder, tmp_path / "both", *more)
        assert result.exit_code == 0, result.output
        assert len(list(read_store(tmp_path / "both.work" / "targets"))) == 8
        train += [s for s in stored if s.place > 0.3]
        assert f"{len(train)} sequences" in (tmp_path / "both" / "README.md").read_text()
        options[1] = text_file
        for more, says in ((["--held-out", 0.999], "too few"), (["--scored", 0], "no scored")):
            result = run(target_folder, tmp_path / says, *options, *more)
            assert result.exit_code == 2
            assert says in result.output

    def test_what_another_run_left_in_the_work_folder_is_not_used(
        self, target_folder, text_file, tmp_path
    ):
        def count(out, *options):
            work = ["--work", tmp_path / "work"]
            result = run(target_folder, out, "--steps", 2, "--held-out", 0.1, *work, *options)
            (tmp_path / "work" / "checkpoint.pt").unlink(missing_ok=True)
            return result, (out / "README.md").read_text() if out.exists() else ""

        many = tmp_path / "many.npz"
        rng = np.random.default_rng(9)
        np.savez(
            many,
            tokens=rng.integers(0, VOCAB, size=1000).astype(np.uint16),
            lengths=np.full(100, 10, np.int32),
            prompt_lengths=np.full(100, 3, np.int32),
        )
        train = sum(s.place > 0.1 for s in read_shard(many))
        for name, options in (("all", []), ("some", ["--scored", 64])):
            result, card = count(tmp_path / name, "--text", many, *options)
            assert result.exit_code == 0, result.output
            assert f"{train} sequences" in card
        result, _ = count(tmp_path / "other", "--text", text_file, "--scored", 0)
        assert result.exit_code == 2
        assert "no scored" in result.output

    def test_one_prompt_cannot_be_split(self, target_folder, tmp_path):
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("w3 w4 w5\n")
        options = ["--prompts", prompts, "--samples", 4, "--max-new-tokens", 4, "--steps", 2]
        result = run(target_folder, tmp_path / "draft", *options)
        assert result.exit_code == 2
        assert "of 1 prompts" in result.output

    @pytest.mark.parametrize("fault", ["empty", "cut", "no lengths", "ids only", "few rows"])
    def test_broken_text_is_one_clear_line(self, target_folder, tmp_path, fault):
        arrays = {"tokens": np.arange(20) % VOCAB, "lengths": [10, 10], "prompt_lengths": [2, 2]}
        if fault == "no lengths":
            del arrays["lengths"]
        elif fault in ("ids only", "few rows"):
            arrays["top_ids"] = np.zeros((16 if fault == "ids only" else 9, 4), np.uint32)
        if fault == "few rows":
            arrays["top_logprobs"] = np.zeros((9, 4), np.float16)
        folder = tmp_path / "store"
        folder.mkdir()
        shard = folder / "shard-00000.npz"
        np.savez(shard, **arrays)
        data = shard.read_bytes()
        shard.write_bytes({"empty": b"", "cut": data[:-50]}.get(fault, data))
        for text in (folder, shard):
            result = run(target_folder, tmp_path / "draft", "--text", text)
            assert result.exit_code == 2, result.output
            assert str(text) in result.output.replace("\n", "")
            assert "Traceback" not in result.output

    def test_a_draft_can_be_trained_further(self, target_folder, text_file, tmp_path):
        options = ["--text", text_file, "--steps", 10, "--head-tokens", 20]
        assert run(target_folder, tmp_path / "first", *options).exit_code == 0
        options += ["--init", tmp_path / "first"]
        assert run(target_folder, tmp_path / "second", *options).exit_code == 0
        before, after = history(tmp_path / "first.work"), history(tmp_path / "second.work")
        assert after[0]["loss"] == pytest.approx(before[-1]["loss"], abs=0.02)  # kept in bf16
        assert run(target_folder, tmp_path / "cut", *options, "--head-tokens", 9).exit_code == 0
        head = {name: load_file(tmp_path / name / "model.safetensors") for name in ("cut", "first")}
        kept, whole = (head[name]["head_token_ids"].tolist() for name in ("cut", "first"))
        assert len(kept) == 9
        assert set(kept) < set(whole)
        assert json.loads((tmp_path / "cut" / "config.json").read_text())["reduced_head_size"] == 9
        result = run(target_folder, tmp_path / "third", *options, "--layers", 3)
        assert result.exit_code == 2
        assert "shape" in result.output

    def test_another_plan_is_not_mixed_into_a_checkpoint(self, target_folder, text_file, tmp_path):
        options = ["--text", text_file, "--steps", 5]
        assert run(target_folder, tmp_path / "draft", *options).exit_code == 0
        result = run(target_folder, tmp_path / "draft", "--text", text_file, "--steps", 6)
        assert result.exit_code == 2
        assert "steps" in result.output

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--text", "missing.npz"], "missing.npz"),
            (["--prompts", "missing.txt"], "missing.txt"),
            (["--layers", "7"], "layers 7"),
            (["--width", "16"], "width 16"),
            (["--head-tokens", "1000"], "head_tokens 1000"),
            (["--steps", "0"], "steps 0"),
            (["--lr", "-1"], "learning_rate"),
            (["--held-out", "1.5"], "held_out 1.5"),
            (["--target", "no/such/folder"], "no/such/folder"),
            (["--init", "missing"], "missing"),
            (["--loss", "huber"], "huber"),
        ],
    )
    def test_bad_input_is_one_clear_line(self, target_folder, text_file, tmp_path, options, says):
        if says == "missing":
            options = [*options, "--text", text_file]
        result = run(target_folder, tmp_path / "draft", *options)
        assert result.exit_code == 2
        assert says in result.output
        assert "Traceback" not in result.output

    def test_text_of_another_tokenizer_is_refused(self, target_folder, tmp_path):
        np.savez(
            tmp_path / "t.npz",
            tokens=np.full(20, VOCAB, np.uint16),
            lengths=np.array([10, 10], np.int32),
            prompt_lengths=np.array([2, 2], np.int32),
        )
        result = run(target_folder, tmp_path / "draft", "--text", tmp_path / "t.npz")
        assert result.exit_code == 2
        assert f"token {VOCAB}" in result.output


@pytest.mark.parametrize("head_tokens", [0, 12])
def test_the_folder_loads_into_the_engine(target_folder, text_file, tmp_path, head_tokens):
    from model_fi import EagerRunner, load_model
    from model_fi.masks import causal_mask

    out = tmp_path / "draft"
    options = ["--text", text_file, "--steps", 5, "--head-tokens", head_tokens]
    result = run(target_folder, out, *options)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text())
    assert config["shares_target_embeddings"] is True
    assert config["tie_word_embeddings"] is False
    target = load_model(target_folder, dtype=torch.float32)
    loaded = load_model(out, dtype=torch.float32, target=target)
    ids = load_file(out / "model.safetensors").get("head_token_ids")
    ours = Draft(
        LlamaForCausalLM.from_pretrained(target_folder), DraftShape(2, None, True, head_tokens), ids
    )
    ours.load(out)
    positions = torch.arange(10)
    mask = causal_mask(positions, 64)
    logits = EagerRunner(loaded, 64).forward(positions + 3, positions, positions, mask)
    expected = ours(positions[None] + 3, positions)
    if ids is not None:
        full = torch.full((10, VOCAB), -torch.inf)
        full[:, ids] = expected
        expected = full
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    tensors = load_file(out / "model.safetensors")
    assert ("lm_head.weight" in tensors) == (head_tokens > 0)
    assert not any("embed" in name for name in tensors)
