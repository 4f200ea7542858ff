"""The distillation tool, end to end on a tiny random target."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.distill import main
from experiments.distillation.draft import (
    Draft,
    DraftShape,
    frequent_tokens,
    pick_layers,
    plain_config,
)
from experiments.distillation.losses import gather_top, kl, total_variation
from experiments.distillation.store import Sequence, read_shard, read_store, write_shard
from experiments.distillation.targets import score, score_store
from experiments.distillation.text import answer
from experiments.distillation.training import Trainer, epoch_batches, evaluate, make_batch

VOCAB = 37


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(target_folder):
    return LlamaForCausalLM.from_pretrained(target_folder).eval().requires_grad_(False)


@pytest.fixture
def text_file(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 20, size=24).astype(np.int32)
    np.savez(
        tmp_path / "text.npz",
        tokens=rng.integers(0, VOCAB, size=lengths.sum()).astype(np.uint16),
        lengths=lengths,
        prompt_lengths=rng.integers(1, 6, size=24).astype(np.int32),
    )
    return tmp_path / "text.npz"


def run(target_folder, out, *options):
    common = ["--target", target_folder, "--out", out, "--device", "cpu", "--lr", "0.02"]
    common += ["--batch-tokens", "64", "--warmup", "2", "--save-every", "5", "--top", "16"]
    arguments = [str(option) for option in (*common, "--evaluate-every", "5", *options)]
    return CliRunner().invoke(main, arguments)


def history(work):
    return [json.loads(line) for line in (work / "history.jsonl").read_text().splitlines()]


class TestStore:
    def test_a_shard_comes_back_as_it_was_written(self, tmp_path):
        rng = np.random.default_rng(1)
        written = [
            Sequence(
                rng.integers(0, 70000, size=n),
                p,
                rng.integers(0, 70000, size=(n - p, 3)),
                -rng.random((n - p, 3)).astype(np.float32),
            )
            for n, p in ((5, 2), (9, 1), (3, 2))
        ]
        write_shard(tmp_path, 4, written)
        for ours, theirs in zip(read_store(tmp_path), written, strict=True):
            assert ours.tokens.tolist() == theirs.tokens.tolist()
            assert ours.prompt_length == theirs.prompt_length
            assert ours.top_ids.tolist() == theirs.top_ids.tolist()
            assert np.abs(ours.top_logprobs - theirs.top_logprobs).max() < 1e-3
        assert [path.name for path in tmp_path.iterdir()] == ["shard-00004.npz"]

    def test_scores_are_the_targets_own_despite_padding(self, target):
        rng = np.random.default_rng(2)
        texts = [Sequence(rng.integers(0, VOCAB, size=n), p) for n, p in ((12, 3), (7, 1))]
        for text, scored in zip(texts, score(target, texts, top=VOCAB), strict=True):
            logits = target(torch.from_numpy(text.tokens)[None]).logits[0].log_softmax(-1)
            expected = logits[text.prompt_length - 1 : -1]
            ours = torch.from_numpy(scored.top_logprobs)
            ids = torch.from_numpy(scored.top_ids)
            torch.testing.assert_close(ours, expected.gather(1, ids), atol=1e-5, rtol=0)
            assert scored.top_ids[:, 0].tolist() == expected.argmax(-1).tolist()

    def test_scoring_goes_on_where_it_stopped(self, target, tmp_path):
        rng = np.random.default_rng(3)
        texts = [Sequence(rng.integers(0, VOCAB, size=9), 2) for _ in range(10)]
        score_store(target, texts, tmp_path, top=4, shard_size=4)
        whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        (tmp_path / "shard-00001.npz").unlink()
        stamp = (tmp_path / "shard-00000.npz").stat().st_mtime_ns
        score_store(target, texts, tmp_path, top=4, shard_size=4)
        again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert again.keys() == whole.keys()
        assert (tmp_path / "shard-00000.npz").stat().st_mtime_ns == stamp
        with pytest.raises(ValueError, match="other text"):
            score_store(target, texts[::-1], tmp_path, top=4, shard_size=4)
        with pytest.raises(ValueError, match="top"):
            score_store(target, texts, tmp_path, top=5, shard_size=4)


class TestText:
    def test_batched_greedy_answers_are_those_of_one_prompt_alone(self, target):
        prompts = [[5, 6, 7, 8, 9], [11, 3]]
        together = answer(target, prompts, 0.0, 6, stop_ids=[1])
        for prompt, ours in zip(prompts, together, strict=True):
            alone = answer(target, [prompt], 0.0, 6, stop_ids=[1])[0]
            assert ours.tokens.tolist() == alone.tokens.tolist()
            assert ours.prompt_length == len(prompt)

    def test_the_stop_token_ends_an_answer_and_stays(self, target):
        first = answer(target, [[5, 6]], 0.0, 6, stop_ids=[])[0].tokens[2:].tolist()
        stopped = answer(target, [[5, 6]], 0.0, 6, stop_ids=[first[2]])[0].tokens[2:].tolist()
        assert stopped == first[: first.index(first[2]) + 1]


class TestLosses:
    def test_losses_against_their_definitions(self):
        torch.manual_seed(0)
        logits = torch.randn(5, 8, dtype=torch.float64)
        p = torch.randn(5, 8, dtype=torch.float64).softmax(-1)
        ids = p.argsort(-1, descending=True)
        columns, top = gather_top(ids, p.gather(-1, ids).log(), None)
        q = logits.softmax(-1)
        cross = -(p * q.log()).sum(-1).mean()
        assert kl(logits, columns, top).item() == pytest.approx(cross.item(), abs=1e-5)
        overlap = torch.minimum(p, q).sum(-1).mean()
        assert total_variation(logits, columns, top).item() == pytest.approx(
            1 - overlap.item(), abs=1e-5
        )

    def test_tokens_outside_the_head_have_no_weight(self):
        row_of = torch.tensor([-1, 0, -1, 1])  # the head scores tokens 1 and 3
        ids = torch.tensor([[0, 3, 1]])
        columns, p = gather_top(ids, torch.tensor([[0.5, 0.3, 0.2]]).log(), row_of)
        assert p.tolist() == [pytest.approx([0.0, 0.3, 0.2])]
        assert columns[0, 1:].tolist() == [1, 0]
        q = torch.tensor([[0.6, 0.4]])
        assert total_variation(q.log(), columns, p).item() == pytest.approx(1 - 0.5)

    def test_frequent_tokens_are_ascending_with_ties_to_the_lower_id(self):
        assert frequent_tokens(torch.tensor([1, 5, 2, 2, 9]), 3).tolist() == [1, 2, 4]


class TestDraft:
    def test_a_draft_of_all_layers_is_the_target(self, target):
        draft = Draft(target, DraftShape(layers=4))
        tokens = torch.arange(20).view(2, 10)
        expected = target(tokens).logits.flatten(0, 1)
        torch.testing.assert_close(draft(tokens, torch.arange(20)), expected, atol=1e-5, rtol=0)

    def test_a_reduced_head_scores_the_same_tokens(self, target):
        ids = torch.tensor([2, 3, 30])
        draft = Draft(target, DraftShape(layers=4, head_tokens=3), ids)
        tokens = torch.arange(10)[None]
        torch.testing.assert_close(
            draft(tokens, torch.arange(10)), target(tokens).logits[0][:, ids], atol=1e-5, rtol=0
        )

    def test_projected_embeddings_keep_the_most_energy(self, target):
        draft = Draft(target, DraftShape(width=16, share_embeddings=False))
        table = target.get_input_embeddings().weight
        best = torch.linalg.svdvals(table)[:16].square().sum()
        assert draft.embed_tokens.square().sum().item() == pytest.approx(best.item(), rel=1e-4)

    def test_the_config_says_rope_to_both_generations_and_nothing_of_the_targets_storage(self):
        rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        config = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=rope)
        config.quantization_config = {"quant_method": "gguf"}
        written = plain_config(config)
        assert written["rope_theta"] == 5e5
        assert written["rope_scaling"]["rope_type"] == "llama3"
        assert LlamaConfig(**written).rope_parameters == config.rope_parameters
        assert "quantization_config" not in written
        plain = LlamaConfig(hidden_size=64, num_attention_heads=4)
        assert "rope_scaling" not in plain_config(plain)

    def test_layers_are_spread_from_first_to_last(self):
        assert pick_layers(30, 1) == [0]
        assert pick_layers(30, 2) == [0, 29]
        assert pick_layers(30, 3) == [0, 14, 29]

    @pytest.mark.parametrize(
        ("shape", "names"),
        [
            (DraftShape(layers=9), "layers 9"),
            (DraftShape(layers=0), "layers 0"),
            (DraftShape(head_tokens=VOCAB), f"head_tokens {VOCAB}"),
            (DraftShape(width=16), "share"),
            (DraftShape(width=15, share_embeddings=False), "width 15"),
            (DraftShape(width=64, share_embeddings=False), "width 64"),
        ],
    )
    def test_impossible_shapes_are_named(self, target, shape, names):
        with pytest.raises(ValueError, match=names):
            Draft(target, shape, torch.zeros(0) if shape.head_tokens else None)


def test_a_sequence_without_scores_teaches_its_own_tokens(target):
    texts = [Sequence(np.arange(9), 2), Sequence(np.arange(5, 11), 1)]
    scored = score(target, texts, top=3)
    batch = make_batch([texts[0], scored[1]], "cpu")
    assert batch.ids[:7, 0].tolist() == list(range(2, 9))
    assert batch.logprobs[:7].exp().tolist() == [[1.0, 0.0, 0.0]] * 7
    assert batch.ids[7:].tolist() == scored[1].top_ids.tolist()
    torch.testing.assert_close(batch.logprobs[7:], torch.from_numpy(scored[1].top_logprobs))


def test_every_sequence_is_in_an_epoch_once_and_batches_keep_their_size():
    lengths = np.random.default_rng(0).integers(5, 60, size=300).tolist()
    batches = epoch_batches(lengths, 200, seed=3)
    assert sorted(i for batch in batches for i in batch) == list(range(300))
    assert all(len(b) * max(lengths[i] for i in b) <= 200 for b in batches)
    assert batches == epoch_batches(lengths, 200, seed=3) != epoch_batches(lengths, 200, seed=4)


def test_evaluation_of_the_target_itself_is_perfect(target):
    texts = [Sequence(np.random.default_rng(i).integers(0, VOCAB, size=9), 2) for i in range(9)]
    quality = evaluate(
        Draft(target, DraftShape(layers=4)), score(target, texts, VOCAB), None, None, "cpu"
    )
    assert quality.agreement == 1.0
    assert quality.overlap == pytest.approx(1.0, abs=1e-4)
    assert quality.positions == 63


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
        result = run(target_folder, tmp_path / "draft", *options)
        assert result.exit_code == 0, result.output
        measured = history(tmp_path / "draft.work")
        assert measured[-1]["overlap"] > measured[0]["overlap"] + 0.2
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
        options = ["--text", text_file, "--steps", 6, "--scored", 8, "--held-out", 0.1]
        result = run(target_folder, tmp_path / "draft", *options)
        assert result.exit_code == 0, result.output
        stored = list(read_store(tmp_path / "draft.work" / "targets"))
        assert len(stored) == 8
        assert "22 sequences" in (tmp_path / "draft" / "README.md").read_text()
        result = run(target_folder, tmp_path / "other", *options, "--held-out", 0.5)
        assert result.exit_code == 2
        assert "too few" in result.output

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


def test_shards_of_given_text_need_no_scores(tmp_path):
    write_shard(tmp_path, 0, [Sequence(np.arange(5), 2)])
    assert read_shard(tmp_path / "shard-00000.npz")[0].top_ids is None
