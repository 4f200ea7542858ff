"""Requests, stopping, streaming, interrupts and near-the-limit behaviour of the decoder."""

from __future__ import annotations

import pytest
import torch

from sequoia import AutoregressiveDecoder, SamplingParams, SpeculativeDecoder
from sequoia.pair import Pair
from tree_builder import TreeTopology

GREEDY = SamplingParams(max_new_tokens=24, temperature=0)


@pytest.fixture
def pair(tiny_pair):
    return tiny_pair(97)


@pytest.fixture
def decoder(pair):
    return SpeculativeDecoder(pair, "kary:2^3", "rrs_wor", max_length=128)


class Recorder:
    """A streamer in transformers' sense."""

    def __init__(self):
        self.chunks, self.ended = [], False

    def put(self, value):
        self.chunks.append(value.tolist())

    def end(self):
        self.ended = True


def test_prompts_may_be_lists_or_tensors_of_one_sequence(decoder):
    expected = decoder.generate([1, 2, 3], GREEDY).token_ids
    assert decoder.generate(torch.tensor([1, 2, 3]), GREEDY).token_ids == expected
    assert decoder.generate(torch.tensor([[1, 2, 3]]), GREEDY).token_ids == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([[1, 2], [3, 4]]), r"one prompt at a time.*\(2, 2\)"),
        ([], "empty"),
        ([1, 97], r"prompt token 97 at position 1 is outside the vocabulary \[0, 97\)"),
        ([1, -1], "prompt token -1"),
        ([1.5, 2.0], "must be integers"),
        (list(range(90)) * 2, "180 tokens, but max_length 128"),
        ("text", "no tokenizer"),
    ],
)
def test_a_bad_prompt_is_named(decoder, prompt, message):
    with pytest.raises(ValueError, match=message):
        decoder.generate(prompt, GREEDY)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_max_new_tokens_is_exact(decoder, limit):
    output = decoder.generate([1, 2], SamplingParams(max_new_tokens=limit, temperature=0))
    assert len(output.token_ids) == limit
    assert output.finish_reason == "length"
    assert sum(output.accepted_per_step) <= limit


def test_the_length_limit_ends_cleanly_and_loses_no_token(pair):
    prompt = list(range(20))
    short = SpeculativeDecoder(pair, "kary:2^4", max_length=33)
    params = SamplingParams(max_new_tokens=100, temperature=0)
    output = short.generate(prompt, params)
    assert (len(output.token_ids), output.finish_reason) == (13, "length")
    expected = AutoregressiveDecoder(pair).generate(
        prompt, SamplingParams(max_new_tokens=13, temperature=0)
    )
    assert output.token_ids == expected.token_ids


def test_the_whole_positions_of_the_model_can_be_used(tiny_pair):
    pair = tiny_pair(97)
    prompt = [3] * (pair.max_length - 5)
    output = SpeculativeDecoder(pair, "chain:8").generate(
        prompt, SamplingParams(max_new_tokens=50, temperature=0)
    )
    assert len(output.token_ids) == 5


def test_a_stop_token_in_the_middle_of_a_path_ends_the_text_there(pair, decoder):
    full = decoder.generate([4, 9], GREEDY).token_ids
    for stop in (full[5], full[11]):
        at = full.index(stop)
        params = SamplingParams(max_new_tokens=24, temperature=0, stop_token_ids=(stop,))
        output = decoder.generate([4, 9], params)
        assert output.token_ids == full[: at + 1]
        assert output.finish_reason == "stop"
        assert sum(output.accepted_per_step) <= len(output.token_ids)


def test_stop_tokens_come_from_the_pair_unless_given(pair, decoder):
    full = decoder.generate([4, 9], GREEDY).token_ids
    stopping = Pair(None, pair.target, pair.draft, stop_token_ids=(full[3],))
    own = SpeculativeDecoder(stopping, "kary:2^3", max_length=128)
    assert own.generate([4, 9], GREEDY).finish_reason == "stop"
    ignoring = SamplingParams(max_new_tokens=24, temperature=0, stop_token_ids=())
    assert own.generate([4, 9], ignoring).token_ids == full


def test_one_seed_one_text_and_other_seeds_differ(decoder):
    def text(seed):
        return decoder.generate([1, 2], SamplingParams(max_new_tokens=24, seed=seed)).token_ids

    assert text(5) == text(5)
    assert len({tuple(text(seed)) for seed in range(5)}) == 5


def test_seed_none_follows_torchs_global_generator(decoder):
    def text():
        torch.manual_seed(11)
        return decoder.generate([1, 2], SamplingParams(max_new_tokens=24)).token_ids

    assert text() == text()
    state = torch.random.get_rng_state()
    first = decoder.generate([1, 2], SamplingParams(max_new_tokens=24)).token_ids
    assert not torch.equal(state, torch.random.get_rng_state())
    assert decoder.generate([1, 2], SamplingParams(max_new_tokens=24)).token_ids != first


def test_streams_yield_what_generate_returns_and_streamers_see_the_prompt(decoder):
    expected = decoder.generate([1, 2], GREEDY).token_ids
    chunks = list(decoder.stream([1, 2], GREEDY))
    assert [token for chunk in chunks for token in chunk] == expected
    assert all(chunks)
    recorder = Recorder()
    decoder.generate([1, 2], GREEDY, streamer=recorder)
    assert recorder.chunks[0] == [[1, 2]]
    assert [token for chunk in recorder.chunks[1:] for token in chunk] == expected
    assert recorder.ended


def test_an_abandoned_stream_leaves_the_decoder_usable_and_cannot_go_on(decoder):
    expected = decoder.generate([1, 2], GREEDY).token_ids
    abandoned = decoder.stream([7, 8, 9], GREEDY)
    next(abandoned)
    assert decoder.generate([1, 2], GREEDY).token_ids == expected
    with pytest.raises(RuntimeError, match="abandoned"):
        next(abandoned)


def test_an_interrupt_returns_what_is_there_and_leaves_the_decoder_usable(decoder):
    expected = decoder.generate([1, 2], GREEDY).token_ids
    steps = []

    def interrupt(record):
        steps.append(record)
        if len(steps) == 3:
            raise KeyboardInterrupt

    recorder = Recorder()
    output = decoder.generate([1, 2], GREEDY, recorder, observer=interrupt)
    assert output.finish_reason == "interrupt"
    streamed = [token for chunk in recorder.chunks[1:] for token in chunk]
    assert streamed == output.token_ids  # those of the interrupted step too
    assert recorder.ended
    assert output.num_steps == 3
    assert output.token_ids == expected[: len(output.token_ids)] != []
    assert decoder.generate([1, 2], GREEDY).token_ids == expected


def test_two_decoders_on_one_pair_share_no_cache(pair):
    one = SpeculativeDecoder(pair, "chain:4", max_length=128)
    two = SpeculativeDecoder(pair, "kary:2^3", max_length=128)
    expected = one.generate([1, 2], GREEDY).token_ids
    first, second = one.stream([1, 2], GREEDY), two.stream([5, 6, 7], GREEDY)
    interleaved = []
    for _ in range(30):
        interleaved += next(first, [])
        next(second, [])
    assert interleaved == expected


def test_an_observer_sees_drafted_tokens_probabilities_and_the_path(decoder):
    records = []

    def observe(record):
        p = record.target_rows.probs
        assert p.shape == (record.tokens.shape[0], 97)
        if record.draft_rows is None:  # the last token may come from the root alone
            assert record.tokens.shape[0] == 1
        else:
            assert record.draft_rows.probs.shape == (record.tree.rows.shape[0], 97)
        assert torch.allclose(p.sum(-1), torch.ones(p.shape[0]))
        accepted = record.tokens[torch.tensor(record.path)][1:].tolist()
        assert accepted == record.emitted[:-1]
        records.append(record.path)

    output = decoder.generate([1, 2], SamplingParams(max_new_tokens=24, seed=1), observer=observe)
    assert len(records) == output.num_steps
    assert any(len(path) > 1 for path in records)


def test_at_temperature_zero_the_output_names_the_rule_that_ran(decoder, pair):
    assert decoder.generate([1], GREEDY).verifier == "greedy (rrs_wor at T = 0)"
    sampled = SamplingParams(max_new_tokens=2)
    assert decoder.generate([1], sampled).verifier == "rrs_wor"
    greedy = SpeculativeDecoder(pair, "chain:3", "greedy", max_length=64)
    assert greedy.generate([1], GREEDY).verifier == "greedy"
    with pytest.raises(ValueError, match=r"temperature 0 only, got 1.0"):
        greedy.generate([1], sampled)


def test_a_verifier_that_cannot_take_the_tree_is_refused_when_the_engine_is_built(pair):
    with pytest.raises(ValueError, match=r"spechub takes at most 2"):
        SpeculativeDecoder(pair, TreeTopology((-1, 0, 0, 0)), "spechub")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"verifier": "nonsense"}, "nonsense"),
        ({"verifier": object()}, "is no verifier"),
        ({"tree": "kary:2"}, "kary:2"),
        ({"max_length": 1}, "max_length 1 is outside"),
        ({"max_length": 10**6}, r"max_length 1000000 is outside \[2, 2048\]"),
    ],
)
def test_bad_engine_arguments_are_named(pair, arguments, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(pair, **arguments)


def test_a_broken_model_is_a_fault_not_a_silent_end(tiny_folders):
    from model_fi import load_model

    target_folder, draft_folder = tiny_folders(97)
    broken = load_model(target_folder, dtype=torch.float32)
    with torch.no_grad():
        broken.model.norm.weight[0] = float("nan")
    pair = Pair(None, broken, load_model(draft_folder, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"node 0 .* no distribution"):
        SpeculativeDecoder(pair, "chain:3").generate([1], SamplingParams(max_new_tokens=3))


def test_cache_after_a_step_equals_a_fresh_forward(decoder, pair):
    """Accepting a branch that is not the first leaves the cache as if the text had been fed."""
    run = decoder.start([1, 2, 3], SamplingParams(max_new_tokens=40, seed=3))
    for _ in run:
        pass
    text = [1, 2, 3, *run.watch.token_ids]
    fresh = AutoregressiveDecoder(pair, max_length=128)
    fresh.target.prefill(torch.tensor(text[:-5]))
    used = len(text) - 5
    for mine, theirs in (
        (decoder.target.cache.k, fresh.target.cache.k),
        (decoder.target.cache.v, fresh.target.cache.v),
    ):
        torch.testing.assert_close(mine[:, :, :used], theirs[:, :, :used], atol=1e-4, rtol=1e-4)
