"""What callers hand in at the edges: odd prompts, stop strings, temperatures, broken models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from model_fi import load_model
from sequoia import AutoregressiveDecoder, SamplingParams, SpeculativeDecoder
from sequoia.memory import check_memory

STOP_ID = 5


class LetterTokenizer:
    """Token i is the i-th letter; one is special, so that the text leaves it out."""

    bos_token = None
    added_tokens_decoder = {  # noqa: RUF012 (transformers' attribute)
        STOP_ID: SimpleNamespace(content="<stop>", special=True),
        6: SimpleNamespace(content="g", special=False),
    }

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        return "".join("abcdefg"[i] for i in ids if i != STOP_ID)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (["a text", "another"], "batch size 1 only"),
        ([[1, 2], [3]], "batch size 1 only"),
        ({"input_ids": [1, 2]}, r"give its \['input_ids'\]"),
        (None, "got None"),
        (b"text", "got b'text'"),
    ],
)
def test_a_prompt_of_another_kind_is_refused_with_the_way_out(tiny_pair, prompt, words):
    """torch's own errors came through: 'too many dimensions', 'Could not infer dtype'."""
    with pytest.raises(ValueError, match=words):
        AutoregressiveDecoder(tiny_pair()).generate(prompt)


def test_stop_strings_without_a_tokenizer_are_refused_before_anything_runs(tiny_pair):
    with pytest.raises(ValueError, match=r"no tokenizer: stop=.*'x'"):
        AutoregressiveDecoder(tiny_pair()).start([1], SamplingParams(stop="x"))


def test_a_stop_string_that_is_a_special_token_stops(tiny_pair):
    """It never showed in the text, so it was never found."""
    pair = replace(tiny_pair(), tokenizer=LetterTokenizer())
    decoder = SpeculativeDecoder(pair, "kary:2^3")
    params = SamplingParams(max_new_tokens=200, seed=0, stop=("<stop>",))
    output = decoder.generate([1], params)
    assert output.finish_reason == "stop"
    assert output.token_ids.index(STOP_ID) == len(output.token_ids) - 1
    assert len(output.text) == len(output.token_ids) - 1


@pytest.mark.parametrize("temperature", [1e-20, 1e-38, 1e-60])
def test_a_temperature_near_0_is_greedy_and_does_not_overflow(tiny_pair, temperature):
    decoder = SpeculativeDecoder(tiny_pair(), "kary:2^3")
    cold = decoder.generate([1], SamplingParams(20, temperature=temperature, seed=0))
    assert cold.token_ids == decoder.generate([1], SamplingParams(20, temperature=0)).token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("limit", [1, 8])
def test_broken_weights_raise_at_every_temperature(tiny_folders, tiny_pair, temperature, limit):
    """At T = 0 the argmax of a row of NaN is token 0, and a plain decoder emitted it."""
    target = load_model(tiny_folders(7)[0], dtype=torch.float32)
    with torch.no_grad():
        target.model.norm.weight[3] = torch.nan
    target.fuse()
    pair = replace(tiny_pair(), target=target)
    for decoder in (AutoregressiveDecoder(pair), SpeculativeDecoder(pair, "chain:3")):
        with pytest.raises(ValueError, match="no distribution"):
            decoder.generate([1], SamplingParams(limit, temperature=temperature, seed=0))


def test_a_tree_deeper_than_the_models_length_is_refused(tiny_pair):
    with pytest.raises(ValueError, match=r"5000 levels.*at most 2048 levels"):
        SpeculativeDecoder(tiny_pair(), "chain:5000")
    SpeculativeDecoder(tiny_pair(), "chain:30", max_length=20)  # near the end of a text it shrinks


def test_traversal_walks_a_chain_deeper_than_pythons_recursion_limit(tiny_pair):
    pair = replace(tiny_pair(), draft=tiny_pair().target)
    decoder = SpeculativeDecoder(pair, "chain:1200", "rrs_wor/traversal")
    assert len(decoder.generate([1], SamplingParams(1200, seed=0)).token_ids) == 1200


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_a_device_that_is_not_there_is_named(tiny_folders, device):
    """torch raised RuntimeError, or AssertionError in a build without CUDA."""
    with pytest.raises(ValueError, match=device):
        load_model(tiny_folders(7)[0], device=device)
    with pytest.raises(ValueError, match=device):
        check_memory([], "auto", device, 64)


def test_a_generation_runs_once(tiny_pair):
    """Iterated again, it went on from the prompt with the tokens of the first run before it."""
    run = AutoregressiveDecoder(tiny_pair()).start([1], SamplingParams(5, seed=0))
    next(iter(run))
    with pytest.raises(RuntimeError, match="already run"):
        next(iter(run))
