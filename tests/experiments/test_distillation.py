"""The parts of a distillation: stores, text, losses, the draft, batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from experiments.distillation import targets
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
from experiments.distillation.text import answer, read_prompts
from experiments.distillation.training import epoch_batches, evaluate, make_batch
from sequoia.prompts import load as load_prompts

VOCAB = 37  # of the target


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

    def test_scores_that_a_text_brings_along_are_kept(self, target, tmp_path, monkeypatch):
        rng = np.random.default_rng(3)
        texts = [Sequence(rng.integers(0, VOCAB, size=9), 2) for _ in range(6)]
        scored = score(target, texts, top=4)
        seen = []
        monkeypatch.setattr(
            targets,
            "score",
            lambda model, some, top: seen.append(len(some)) or score(model, some, top),
        )
        score_store(target, scored[:4] + texts[4:], tmp_path, top=4, batch_size=8)
        assert seen == [2]
        for ours, theirs in zip(read_store(tmp_path), scored, strict=True):
            assert ours.tokens.tolist() == theirs.tokens.tolist()
            assert ours.top_ids.tolist() == theirs.top_ids.tolist()


class TestText:
    def test_batched_greedy_answers_are_those_of_one_prompt_alone(self, target):
        prompts = [[5, 6, 7, 8, 9], [11, 3]]
        together = answer(target, prompts, 0.0, 6, stop_ids=[1], top=3)
        for prompt, ours in zip(prompts, together, strict=True):
            alone = answer(target, [prompt], 0.0, 6, stop_ids=[1], top=3)[0]
            assert ours.tokens.tolist() == alone.tokens.tolist()
            assert ours.prompt_length == len(prompt)

    def test_the_stop_token_ends_an_answer_and_stays(self, target):
        first = answer(target, [[5, 6]], 0.0, 6, stop_ids=[], top=3)[0].tokens[2:].tolist()
        stopped = answer(target, [[5, 6]], 0.0, 6, stop_ids=[first[2]], top=3)[0]
        assert stopped.tokens[2:].tolist() == first[: first.index(first[2]) + 1]
        assert len(stopped.top_ids) == stopped.num_answers

    @pytest.mark.parametrize("temperature", [0.0, 0.7])
    def test_answers_come_with_the_scores_of_a_pass_over_them(self, target, temperature):
        torch.manual_seed(0)
        answers = answer(target, [[5, 6, 7, 8, 9], [11, 3]], temperature, 6, stop_ids=[1], top=4)
        for ours, theirs in zip(answers, score(target, answers, top=4), strict=True):
            assert ours.top_ids.tolist() == theirs.top_ids.tolist()
            assert np.abs(ours.top_logprobs - theirs.top_logprobs).max() < 1e-4

    def test_the_prompts_that_come_along_are_not_those_measured_on(self):
        shipped = {prompt.text for prompt in load_prompts()}
        own = read_prompts(None)
        assert len(own) == len(set(own)) > 200
        assert not shipped & set(own)


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


def test_what_is_held_out_depends_on_the_prompt_alone():
    prompt = [5, 6, 7]
    places = {Sequence(np.array(prompt + [answer] * 4), 3).place for answer in range(9)}
    assert len(places) == 1  # all answers to one prompt lie on one side
    pieces = [Sequence(np.array([5, answer, 7]), 1).place for answer in range(400)]
    assert len(set(pieces)) == 400  # pieces of text are told by all of it
    assert 0.4 < np.mean(pieces) < 0.6
    assert Sequence(np.array(prompt, np.uint16), 3).place in places  # whatever the storage


def test_shards_of_given_text_need_no_scores(tmp_path):
    write_shard(tmp_path, 0, [Sequence(np.arange(5), 2)])
    assert read_shard(tmp_path / "shard-00000.npz")[0].top_ids is None
