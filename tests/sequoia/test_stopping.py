"""Cutting at stop tokens, stop strings and lengths, and what may be streamed meanwhile."""

from __future__ import annotations

import pytest

from sequoia.stopping import StopWatch


class ByteTokenizer:
    """Token i is byte i; 256 is a special token that is not shown."""

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        assert skip_special_tokens
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def watch(limit=100, stop_ids=(256,), stop=()):
    return StopWatch(ByteTokenizer(), limit, stop_ids, stop)


def test_a_stop_token_inside_the_accepted_path_cuts_there():
    seen = watch()
    assert seen.push([65, 256, 66, 67]) == [65, 256]
    assert seen.finish_reason == "stop"
    assert seen.token_ids == [65, 256]
    assert seen.text(final=True) == "A"


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_new_tokens_is_exact(limit):
    seen = watch(limit)
    kept = seen.push([65, 66, 67, 68])
    assert (kept, seen.finish_reason) == ([65, 66, 67, 68][:limit], "length")


def test_whichever_comes_first_names_the_reason():
    assert watch(2).push([65, 256]) == [65, 256]
    stopped = watch(2)
    stopped.push([65, 256])
    assert stopped.finish_reason == "stop"  # the token that fills the length is itself a stop


def test_stop_strings_span_steps_and_hold_back_what_may_become_one():
    seen = watch(stop=("END",))
    seen.push(list(b"abcE"))
    assert seen.text() == "abc"
    assert seen.release() == list(b"abc")
    seen.push(list(b"Nx"))
    assert seen.text() == "abcENx"
    assert seen.release() == list(b"ENx")
    seen.push(list(b"yENDz"))
    assert seen.finish_reason == "stop"
    assert bytes(seen.token_ids) == b"abcENxyEND"
    assert seen.text(final=True) == "abcENxy"
    assert seen.release() == list(b"y")


def test_the_first_of_several_stop_strings_cuts():
    seen = watch(stop=("zz", "b"))
    seen.push(list(b"abzz"))
    assert seen.text(final=True) == "a"


def test_an_unfinished_stop_string_is_shown_at_the_end():
    seen = watch(4, stop=("END",))
    seen.push(list(b"abEN"))
    assert seen.finish_reason == "length"
    assert seen.text(final=True) == "abEN"
    assert seen.release() == list(b"abEN")


def test_half_a_character_is_held_back():
    seen = watch()
    euro = list("€".encode())
    seen.push([65, *euro[:2]])
    assert seen.text() == "A"
    seen.push([euro[2]])
    assert seen.text() == "A€"


def test_without_stop_strings_every_token_is_released_at_once():
    seen = watch()
    seen.push([65, 66])
    assert seen.release() == [65, 66]
    seen.push([67])
    assert seen.release() == [67]


class PendingBytes(ByteTokenizer):
    """Each byte of an unfinished character is shown by itself, as byte-fallback decoders do."""

    def decode(self, ids, **options):
        data = bytes(ids)
        for cut in range(4):
            try:
                return data[: len(data) - cut].decode() + "\ufffd" * cut
            except UnicodeDecodeError:
                continue
        raise AssertionError(data)


@pytest.mark.parametrize("reason", ["length", "interrupt"])
def test_at_the_end_every_token_has_been_released(reason):
    ids = list("ab\U0001f600".encode())  # while it is pending, longer than when it is whole
    watch = StopWatch(PendingBytes(), len(ids) if reason == "length" else 99, (), ("zzz",))
    released = []
    for token in ids:
        watch.push([token])
        released += watch.release()
    if reason == "interrupt":
        watch.finish_reason = reason
        released += watch.release()
    assert released == watch.token_ids == ids
    assert watch.finish_reason == reason


def test_a_stop_token_is_released_with_stop_strings_as_without():
    for stop in ((), ("zzz",)):
        watch = StopWatch(ByteTokenizer(), 99, (ord("b"),), stop)
        watch.push([ord("a"), ord("b")])
        assert watch.release() == watch.token_ids == [ord("a"), ord("b")]
