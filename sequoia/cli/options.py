"""Options that several commands share, and the small dataclasses they arrive in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sequoia.config import SamplingParams

EMBEDDED = "embedded"
NO_DRAFT = "none"
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelOptions:
    """Which models, where and how."""

    target: str
    draft: str | None
    dtype: str
    device: str | None
    threads: int | None
    max_length: int | None


@dataclass(frozen=True)
class TreeOptions:
    """What is drafted and how it is verified."""

    tree: str
    verifier: str


@dataclass(frozen=True)
class SamplingOptions:
    """How to sample and when to stop; ``params()`` validates."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop: tuple[str, ...]

    def params(self) -> SamplingParams:
        from sequoia.config import SamplingParams

        return SamplingParams(**dataclasses.asdict(self))


_MODEL = [
    click.option(
        "--target",
        default=EMBEDDED,
        show_default=True,
        metavar="MODEL",
        help="The model whose text you want: a Hub id, a folder, a GGUF file, or 'embedded'.",
    ),
    click.option(
        "--draft",
        metavar="MODEL",
        help="The small model that proposes, with the same tokenizer; 'none' decodes without one. "
        "[default: embedded, with the embedded target]",
    ),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="auto: the checkpoint's on a GPU; on a CPU what the processor has.",
    ),
    click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 ... [default: cuda if any]"),
    click.option("--threads", type=click.IntRange(min=1), help="CPU threads. [default: torch's]"),
    click.option(
        "--max-length",
        type=click.IntRange(min=2),
        help="Tokens of prompt and answer together that memory is planned for. "
        "[default: what both models take]",
    ),
]

_TREE = [
    click.option(
        "--tree",
        default="auto",
        show_default=True,
        metavar="TREE",
        help="chain:5, kary:2^3, chains:4x8, a growmap or tree file, or 'auto'.",
    ),
    click.option(
        "--verifier",
        default="rrs_wor",
        show_default=True,
        metavar="NAME",
        help="The rule that draws and accepts; an unknown name lists those there are.",
    ),
]

_SAMPLING = [
    click.option("--max-new-tokens", type=int, default=256, show_default=True),
    click.option(
        "--temperature", type=float, default=1.0, show_default=True, help="0 is greedy decoding."
    ),
    click.option("--top-k", type=int, default=0, show_default=True, help="0 is off."),
    click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off."),
    click.option("--seed", type=int, help="The same seed gives the same text."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before TEXT (repeatable)."),
]


def _collect(argument: str, cls: type, options: list[Any]) -> Callable[[Any], Any]:
    """A decorator: adds ``options`` to a command and hands them over as one ``cls``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            fields = {field.name: values.pop(field.name) for field in dataclasses.fields(cls)}
            return function(**values, **{argument: cls(**fields)})

        return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), call)

    return decorate


model_options = _collect("models", ModelOptions, _MODEL)
tree_options = _collect("trees", TreeOptions, _TREE)
sampling_options = _collect("sampling", SamplingOptions, _SAMPLING)
