"""Adaptive against static trees: equal budgets, continued runs, JSON."""

import json

import pytest

from experiments import compare_trees
from tree_builder import AcceptanceTable


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    AcceptanceTable.from_rates([0.6, 0.2]).save(path)
    return path


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_adaptive_trees_nearly_fill_the_budget(size):
    trees = list(compare_trees.adaptive_trees(size, prune=False))
    assert len(trees) >= 3
    assert len(set(trees)) == len(trees)
    for tree in trees:
        assert 0.8 * size <= tree.size <= size
        assert not tree.prunes
    assert any(tree.prunes for tree in compare_trees.adaptive_trees(size, prune=True))


def test_a_run_continues_and_reports(table, tmp_path, tiny_pair_with_text, capsys, monkeypatch):
    monkeypatch.setattr(compare_trees, "load_pair", lambda *_: tiny_pair_with_text)
    out = tmp_path / "out.json"
    options = ["--acceptance", str(table), "--sizes", "4", "--prompts", "2", "--new-tokens", "8",
               "--out", str(out)]  # fmt: skip
    compare_trees.main(options)
    report = json.loads(out.read_text())
    size = out.with_suffix(".jsonl").stat().st_size
    found = report["sizes"]["4"]
    static = next(iter(found))
    assert static.startswith("static")
    assert found[static]["predicted"] == pytest.approx(1 + 0.6 + 0.36 + 0.216)
    assert all(1 <= each["tokens_per_step"] <= each["levels"] for each in found.values())
    assert report["provenance"]["sampling"]["max_new_tokens"] == 8

    compare_trees.main(options)
    assert out.with_suffix(".jsonl").stat().st_size == size
    again = json.loads(out.read_text())["sizes"]
    assert again == report["sizes"]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["4"]["static"] > 0


@pytest.fixture
def tiny_pair_with_text(tmp_path, save_model):
    from sequoia import load_pair

    return load_pair(save_model(tmp_path / "t", 0), save_model(tmp_path / "d", 1))


@pytest.fixture
def save_model():
    """Tiny model folders with a byte-level tokenizer, long enough for the shipped prompts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    def save(folder, seed):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = {token: index for index, token in enumerate([*alphabet, "</s>"])}
        tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024,
            bos_token_id=None, eos_token_id=256,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
        fast.save_pretrained(folder)
        return str(folder)

    return save
