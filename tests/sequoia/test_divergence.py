"""What is said of a text at temperature 0 that is not the autoregressive one."""

from __future__ import annotations

import pytest
import torch

from sequoia import AutoregressiveDecoder, SamplingParams
from sequoia.divergence import Divergence, find_divergence

PROMPT = [1, 2, 3]


@pytest.fixture
def plain(tiny_pair):
    return AutoregressiveDecoder(tiny_pair(97), max_length=64)


@pytest.fixture
def text(plain):
    return plain.generate(PROMPT, SamplingParams(max_new_tokens=12, temperature=0)).token_ids


def test_equal_texts_and_a_text_that_ends_earlier_do_not_differ(plain, text):
    assert find_divergence(plain, PROMPT, text, text) is None
    assert find_divergence(plain, PROMPT, text[:5], text) is None


def test_the_first_difference_is_found_with_the_logits_of_its_row(plain, text):
    other = [*text[:7], (text[7] + 1) % 97, *text[8:-1], (text[-1] + 1) % 97]
    found = find_divergence(plain, PROMPT, other, text)
    assert (found.position, found.token, found.plain_token) == (7, other[7], text[7])
    row = plain.target.prefill(torch.tensor([*PROMPT, *text[:7]]))[0]
    expected = row.sort(descending=True)
    assert found.best == tuple(expected.indices[:2].tolist())
    assert found.best[0] == text[7]
    assert found.logits == pytest.approx(expected.values[:2].tolist())
    assert found.gap == pytest.approx(float(expected.values[0] - expected.values[1]))
    assert not found.is_tie
    assert "no tie" in found.explain()


def test_a_gap_is_judged_in_roundings_of_the_models_dtype():
    gap = {"logits": (16.0, 15.875), "best": (5, 6), "position": 3, "token": 6, "plain_token": 5}
    half, full = Divergence(**gap, dtype=torch.bfloat16), Divergence(**gap, dtype=torch.float32)
    assert half.roundings == pytest.approx(1.0)
    assert half.is_tie
    assert not full.is_tie
    lines = half.explain().splitlines()
    assert lines[0] == "first difference at new token 3: 6 here, 5 autoregressively"
    assert "16 for 5, 15.875 for 6" in lines[1]
    assert "gap is 0.125, 1.0 roundings of bfloat16: a tie within rounding" in lines[2]


def test_a_token_that_is_neither_of_the_best_is_no_tie():
    found = Divergence(0, 9, 5, (5, 6), (16.0, 16.0), torch.bfloat16)
    assert found.gap == 0
    assert not found.is_tie


def test_tokens_are_shown_as_text_where_there_is_a_tokenizer():
    class Letters:
        def decode(self, ids):
            return "".join(chr(97 + i) for i in ids)

    said = Divergence(0, 1, 0, (0, 1), (2.0, 2.0), torch.float16).explain(Letters())
    assert "1 'b' here, 0 'a' autoregressively" in said
