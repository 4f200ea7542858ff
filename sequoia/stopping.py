"""When a generation ends, and which text is safe to show meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sequoia.outputs import FinishReason


class StopWatch:
    """Cuts what each step emits: at a stop token, a stop string, or ``max_new_tokens``.

    Whichever comes first in the text names the finish reason. ``text`` is what may be shown: it
    ends before a stop string and leaves out a trailing half character and a suffix that may
    still become a stop string.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_new_tokens: int,
        stop_token_ids: Iterable[int],
        stop: tuple[str, ...] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.stop_token_ids = frozenset(stop_token_ids)
        self.stop = stop
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._released = 0

    def push(self, emitted: list[int]) -> list[int]:
        """Take one step's tokens; returns those that are kept."""
        kept: list[int] = []
        for token in emitted:
            kept.append(token)
            self.token_ids.append(token)
            if token in self.stop_token_ids or self._stop_string_at() is not None:
                self.finish_reason = "stop"
            elif len(self.token_ids) >= self.max_new_tokens:
                self.finish_reason = "length"
            if self.finish_reason:
                break
        return kept

    def text(self, *, final: bool = False) -> str:
        """The text so far; with ``final`` nothing that may still change is held back."""
        if self.tokenizer is None:
            return ""
        text = self._decode()
        cut = self._find_stop(text)
        if cut is not None:
            return text[:cut]
        return text if final else self._settled(text)

    def release(self) -> list[int]:
        """Token ids that have become safe to stream since the last call.

        Without stop strings that is every token; with them, those whose text can no longer
        become, or be part of, a stop string.
        """
        end = len(self.token_ids)
        finished = self.finish_reason is not None
        if self.stop and not (finished and self._stop_string_at() is None):
            shown = len(self.text(final=finished))
            while end > self._released and self._length(end) > shown:
                end -= 1
        released = self.token_ids[self._released : end]
        self._released = end
        return released

    def _length(self, count: int) -> int:
        """Characters of the first ``count`` tokens; half a character counts as one."""
        return len(self._plain(self.token_ids[:count]))

    def _settled(self, text: str) -> str:
        text = text.rstrip("�")
        held = max((_overlap(text, stop) for stop in self.stop), default=0)
        return text[: len(text) - held]

    def _stop_string_at(self) -> int | None:
        return self._find_stop(self._decode()) if self.stop else None

    def _find_stop(self, text: str) -> int | None:
        return min((at for at in map(text.find, self.stop) if at >= 0), default=None)

    def _decode(self) -> str:
        """All new tokens as text, a final stop token left out.

        Decoded whole each time: at a millisecond for thousands of tokens that costs less than
        being wrong about characters and spaces that span a seam.
        """
        ids = self.token_ids
        if ids and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        return self._plain(ids)

    def _plain(self, ids: list[int]) -> str:
        return self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that ``text`` ends with."""
    longest = min(len(stop) - 1, len(text))
    return next((k for k in range(longest, 0, -1) if text.endswith(stop[:k])), 0)
