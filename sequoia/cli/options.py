"""Options that several commands share, and the small dataclasses they arrive in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sequoia.prompts import KINDS

if TYPE_CHECKING:
    from sequoia.config import SamplingParams

EMBEDDED = "embedded"
NO_DRAFT = "none"
ATTENTION = ("auto", "sdpa", "flashinfer")
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
    attention: str
    graphs: bool

    @property
    def engine(self) -> dict[str, Any]:
        """How passes are run: arguments of every decoder."""
        return {"attention": self.attention, "graphs": self.graphs}


@dataclass(frozen=True)
class TreeOptions:
    """What is drafted and how it is verified."""

    tree: str
    verifier: str | None  # None: the one the tree was tuned for, else rrs_wor


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


@dataclass(frozen=True)
class MeasureOptions:
    """What acceptance is measured on and how finely; ``params()`` validates the sampling."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    new_tokens: int
    prompts: int
    kind: str | None
    text: str | None
    max_children: int
    depths: int
    positions: int

    def params(self) -> SamplingParams:
        from sequoia.config import SamplingParams

        return SamplingParams(
            max_new_tokens=self.new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
        )


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
    click.option(
        "--attention",
        type=click.Choice(ATTENTION),
        default="auto",
        show_default=True,
        help="The target's attention on CUDA; what cannot run FlashInfer takes SDPA and says so.",
    ),
    click.option(
        "--graphs/--no-graphs",
        default=True,
        show_default=True,
        help="Capture the step as a CUDA graph where that can be done (`info` says whether).",
    ),
]

_TREE = [
    click.option(
        "--tree",
        default="auto",
        show_default=True,
        metavar="TREE",
        help="chain:5, kary:2^3, chains:4x8, a growmap or tree file, 'auto', or auto:FILE of "
        "`sequoia tune`.",
    ),
    click.option(
        "--verifier",
        metavar="NAME",
        help="The rule that draws and accepts; an unknown name lists those there are. "
        "[default: what the tree was tuned for, else rrs_wor]",
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


_MEASURE = [
    *_SAMPLING[1:4],
    click.option("--seed", type=int, default=0, show_default=True),
    click.option(
        "--new-tokens",
        type=click.IntRange(min=1),
        default=96,
        show_default=True,
        help="Length of each text: of the target's answers, or of the pieces of --text.",
    ),
    click.option(
        "--prompts",
        type=click.IntRange(min=1),
        default=24,
        show_default=True,
        help="Texts to measure on: shipped prompts with the target's answers, or pieces of --text.",
    ),
    click.option("--kind", type=click.Choice(KINDS), help="Only shipped prompts of this kind."),
    click.option(
        "--text",
        type=click.Path(exists=True, dir_okay=False),
        help="Measure acceptance on this text instead of the target's own answers.",
    ),
    click.option(
        "--max-children",
        type=click.IntRange(min=1),
        default=8,
        show_default=True,
        help="Children of a node that the tables know.",
    ),
    click.option(
        "--depths",
        type=click.IntRange(min=1),
        default=4,
        show_default=True,
        help="Depths of the tree whose acceptance is told apart.",
    ),
    click.option(
        "--positions",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="Most positions of a text whose acceptance is computed.",
    ),
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
measure_options = _collect("measures", MeasureOptions, _MEASURE)
