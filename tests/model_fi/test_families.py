"""What is supported and what is refused by name, from configs alone."""

from types import SimpleNamespace

import pytest
from transformers import GemmaConfig, MixtralConfig, Qwen3MoeConfig

from model_fi import check_config
from model_fi.families import dims, rope_parameters, sliding_window

FAMILY_NAMES = ["llama2", "llama3.2", "smollm2", "vicuna", "mistral", "qwen2", "qwen3"]


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_supported_families(tiny, name):
    check_config(tiny.make_config(name))
    check_config(tiny.make_config(name), 256)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GemmaConfig(), "'gemma'"),
        (MixtralConfig(), "mixture-of-experts.*mixtral"),
        (Qwen3MoeConfig(), "mixture-of-experts.*qwen3_moe"),
    ],
    ids=["gemma", "mixtral", "qwen3_moe"],
)
def test_other_models_are_refused_by_name(config, says):
    with pytest.raises(ValueError, match=says):
        check_config(config, 16)


def test_classifiers_are_refused(tiny):
    config = tiny.make_config("llama2", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(ValueError, match="LlamaForSequenceClassification"):
        check_config(config)


def test_longer_than_the_model(tiny):
    with pytest.raises(ValueError, match=r"257.*256"):
        check_config(tiny.make_config("llama2"), 257)


def test_mistral_window_counts_once_the_cache_is_longer(tiny):
    config = tiny.make_config("mistral", sliding_window=100)
    check_config(config, 100)
    with pytest.raises(ValueError, match=r"window 100.*101.*max_length <= 100"):
        check_config(config, 101)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_qwen_window_counts_only_when_used(tiny, name):
    check_config(tiny.make_config(name, sliding_window=32), 256)
    unused = tiny.make_config(name, use_sliding_window=True, sliding_window=32, max_window_layers=3)
    assert sliding_window(unused) is None
    used = tiny.make_config(name, use_sliding_window=True, sliding_window=32, max_window_layers=1)
    with pytest.raises(ValueError, match="window 32"):
        check_config(used, 256)
    check_config(used, 32)


def test_dynamic_rope_beyond_its_original_length(tiny):
    config = tiny.build_config("llama", rope_scaling=tiny.ROPES["dynamic"])
    check_config(config, 256)
    with pytest.raises(ValueError, match=r"dynamic rope.*max_length <= 256"):
        check_config(config, 300)


def test_unknown_rope_types_are_refused(tiny):
    config = tiny.make_config("llama2")
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(ValueError, match="'spiral'"):
        check_config(config)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_type_in_either_spelling(key):
    old = SimpleNamespace(rope_theta=1e4, rope_scaling={key: "linear", "factor": 2.0})
    new = SimpleNamespace(rope_parameters={key: "linear", "factor": 2.0, "rope_theta": 1e4})
    for config in (old, new):
        assert rope_parameters(config)["rope_type"] == "linear"
    assert rope_parameters(SimpleNamespace())["rope_type"] == "default"


def test_heads_that_do_not_divide(tiny):
    config = tiny.make_config("llama2")
    config.num_key_value_heads = 4
    with pytest.raises(ValueError, match="6 query heads cannot share 4"):
        check_config(config)


def test_biases_of_each_family(tiny):
    assert dims(tiny.make_config("qwen2"))[9:13] == (True, False, False, False)
    assert dims(tiny.make_config("qwen3"))[9:13] == (True, True, False, True)
    assert dims(tiny.make_config("llama-bias"))[9:13] == (True, True, True, False)
    assert dims(tiny.make_config("mistral"))[9:13] == (False, False, False, False)
