"""Tiny random model folders with a byte-level tokenizer, and a way to run the command line."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sequoia.cli import main

TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(extra: tuple[str, ...] = ("<s>", "</s>")) -> PreTrainedTokenizerFast:
    """Every byte is a token, then the special ones: any text can be encoded."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, *extra])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def save_model(folder, seed: int, template: str | None = TEMPLATE, **changes) -> str:
    settings = {
        "vocab_size": 258,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def target(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "target", seed=0)


@pytest.fixture(scope="session")
def draft(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "draft", seed=1)


@pytest.fixture
def pair_options(target, draft) -> list[str]:
    return ["--target", target, "--draft", draft]


@pytest.fixture
def run():
    """Call the command line in this process; the result has stdout, stderr and exit_code."""

    def call(*arguments: str, stdin: str | None = None):
        threads = torch.get_num_threads()
        try:
            return CliRunner().invoke(main, list(arguments), input=stdin)
        finally:
            torch.set_num_threads(threads)

    return call


@pytest.fixture
def refused(run):
    """Call the command line with bad input; returns the one line it ends with."""

    def call(*arguments: str, stdin: str | None = None) -> str:
        result = run(*arguments, stdin=stdin)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, result.stderr
        assert result.stderr.splitlines()[-1] == errors[0]
        return errors[0]

    return call
