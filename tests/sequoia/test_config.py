"""SamplingParams refuses what cannot be meant."""

import pytest

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
    ],
)
def test_a_bad_value_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}.*{value}"):
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
