"""The shipped prompts: enough of each kind, well formed, none twice."""

from collections import Counter

import pytest

from sequoia import prompts


def test_there_are_at_least_64_prompts_spread_over_all_six_kinds():
    counts = Counter(prompt.kind for prompt in prompts.load())
    assert set(counts) == set(prompts.KINDS)
    assert sum(counts.values()) >= 64
    assert min(counts.values()) >= 10


def test_ids_and_texts_are_unique_and_clean():
    loaded = prompts.load()
    assert len({prompt.id for prompt in loaded}) == len(loaded)
    assert len({prompt.text for prompt in loaded}) == len(loaded)
    for prompt in loaded:
        assert prompt.id.startswith(f"{prompt.kind}-")
        assert prompt.text == prompt.text.strip()
        assert prompt.text


def test_load_by_kind_keeps_the_order_of_the_whole_set():
    by_kind = [prompt for kind in prompts.KINDS for prompt in prompts.load(kind)]
    assert sorted(by_kind, key=lambda p: p.id) == sorted(prompts.load(), key=lambda p: p.id)
    assert [p for p in prompts.load() if p.kind == "code"] == prompts.load("code")


def test_a_summary_prompt_holds_the_text_to_summarise():
    assert all(len(prompt.text.split()) > 60 for prompt in prompts.load("summary"))


def test_unknown_kind_is_named():
    with pytest.raises(ValueError, match="'poem'"):
        prompts.load("poem")
