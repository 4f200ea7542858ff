"""A tiny random target, and text for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
