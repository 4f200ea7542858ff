"""``sequoia chat``: a conversation at the prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sequoia.cli.options import (
    ModelOptions,
    SamplingOptions,
    TreeOptions,
    model_options,
    sampling_options,
    tree_options,
)

if TYPE_CHECKING:
    from sequoia.config import SamplingParams
    from sequoia.decoder import SpeculativeDecoder
    from sequoia.pair import Pair

HELP = "/reset starts anew, /exit or Ctrl-D ends, Ctrl-C cuts an answer short."


@click.command(short_help="Talk to the target model.")
@click.option("--system", metavar="TEXT", help="A system message, kept for the whole conversation.")
@sampling_options
@tree_options
@model_options
def chat(
    system: str | None, sampling: SamplingOptions, trees: TreeOptions, models: ModelOptions
) -> None:
    """Talk to the target model. The oldest turns are forgotten when the conversation gets too long.

    \b
    Examples:
      sequoia chat
      sequoia chat --temperature 0.7 --top-p 0.9 --system "Answer in one sentence."
    """
    params = sampling.params()

    from sequoia.cli.session import load, make_decoder, note

    pair = load(models, trees, params, "Hello", chat=True)  # refuses a model without a template
    decoder = make_decoder(pair, trees, models, models.max_length)
    note(HELP)
    conversation = Conversation(pair, decoder, params, system)
    while (line := _read_line()) is not None:
        if line == "/exit":
            break
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            note(f"{line.split()[0]} is no command. {HELP}")
        elif line:
            conversation.turn(line)


class Conversation:
    """The messages so far; each turn sends them all through the target's chat template."""

    def __init__(
        self,
        pair: Pair,
        decoder: SpeculativeDecoder,
        params: SamplingParams,
        system: str | None,
    ) -> None:
        self.pair, self.decoder, self.params = pair, decoder, params
        self.system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = []

    def reset(self) -> None:
        self.messages = []

    def turn(self, text: str) -> None:
        """Answer one user message on stdout; an interrupted answer is kept as far as it came."""
        from sequoia.cli.measure import timed
        from sequoia.cli.session import note

        self.messages.append({"role": "user", "content": text})
        ids = self._fitting_ids()
        run = timed(self.decoder, ids, self.params, lambda piece: click.echo(piece, nl=False))
        click.echo()
        self.messages.append({"role": "assistant", "content": run.output.text})
        note(
            f"[{run.num_tokens} tokens, {run.output.tokens_per_step:.2f} per step, "
            f"{run.tokens_per_second:.1f} tokens/s]"
        )

    def _fitting_ids(self) -> list[int]:
        """The conversation's ids, after forgetting the oldest exchanges if they leave no room."""
        from sequoia.cli.session import chat_ids, note

        limit = self.decoder.max_length
        room = min(self.params.max_new_tokens, limit // 2)
        ids = chat_ids(self.pair, self.system + self.messages)
        forgotten = 0
        while len(ids) + room > limit and len(self.messages) > 1:
            del self.messages[:2]  # a question and its answer
            forgotten += 1
            ids = chat_ids(self.pair, self.system + self.messages)
        if forgotten:
            note(f"note: the conversation is too long; its {forgotten} oldest turns are forgotten")
        if len(ids) >= limit:
            self.messages.pop()
            raise ValueError(
                f"the message has {len(ids)} tokens with its template, the limit is {limit}"
            )
        return ids


def _read_line() -> str | None:
    """The next line, stripped; None at the end of input."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        return input(prompt).strip()
    except EOFError:
        return None
