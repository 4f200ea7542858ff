"""SamplingParams refuses what cannot be meant."""

import re

import pytest
from transformers import GenerationConfig

from sequoia import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", None),
        ("temperature", "warm"),
        ("top_p", None),
        ("top_k", 2.5),
        ("seed", 0.5),
        ("stop", [5]),
        ("stop_token_ids", "12"),
    ],
)
def test_a_bad_value_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}.*{re.escape(str(value))}"):
        SamplingParams(**{field: value})


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="stop strings"):
        SamplingParams(stop=("a", ""))


def test_a_single_stop_string_or_id_is_taken_as_one():
    params = SamplingParams(stop="END", stop_token_ids=7)
    assert (params.stop, params.stop_token_ids) == (("END",), (7,))


def test_unsupported_options_are_refused_by_name():
    with pytest.raises(TypeError, match="repetition_penalty"):
        SamplingParams(repetition_penalty=1.2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.2),
        ("num_beams", 4),
        ("no_repeat_ngram_size", 3),
        ("min_p", 0.1),
        ("max_time", 3.0),
        ("constraints", 1),
    ],
)
def test_generation_config_settings_that_no_step_applies_are_refused(name, value):
    config = GenerationConfig(do_sample=True, **{name: value})
    with pytest.raises(ValueError, match=f"{name}={value}"):
        SamplingParams.from_generation_config(config)


def test_a_generation_config_is_taken_over():
    config = GenerationConfig(
        do_sample=True, temperature=0.7, top_k=9, top_p=0.8, max_new_tokens=5, eos_token_id=[1, 2]
    )
    assert SamplingParams.from_generation_config(config, seed=3) == SamplingParams(
        max_new_tokens=5, temperature=0.7, top_k=9, top_p=0.8, stop_token_ids=(1, 2), seed=3
    )
    assert SamplingParams.from_generation_config(GenerationConfig(temperature=0.7)).greedy
