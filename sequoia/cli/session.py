"""From options to loaded models and a decoder: everything checkable is checked before weights."""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import click

from sequoia.cli.options import EMBEDDED, NO_DRAFT, ModelOptions, TreeOptions

if TYPE_CHECKING:
    from sequoia.config import SamplingParams
    from sequoia.decoder import SpeculativeDecoder
    from sequoia.pair import CheckedPair, Pair

DEFAULT_VERIFIER = "rrs_wor"


def note(message: str) -> None:
    """Say something beside the text, on stderr."""
    click.echo(message, err=True)


def load(
    models: ModelOptions,
    trees: TreeOptions,
    params: SamplingParams | None = None,
    prompt: str | None = None,
    chat: bool = False,
) -> Pair:
    """Check the request, a prompt (see :func:`prompt_ids`) included, then load the pair, with
    progress on stderr. ValueError as load_pair."""
    draft = _draft_name(models)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is first imported
    _check_device(models.device)
    _check_tree(trees, params)
    _quiet_transformers()

    import torch

    from sequoia.pair import check_pair

    if models.threads is not None:
        torch.set_num_threads(models.threads)
    names = models.target if draft is None else f"{models.target} + draft {draft}"
    note(f"loading {names} ...")
    start = time.perf_counter()
    checked = check_pair(
        models.target,
        draft,
        dtype=models.dtype if models.dtype == "auto" else getattr(torch, models.dtype),
        device=models.device,
        max_length=models.max_length,
    )
    if prompt is not None:
        prompt_ids(checked, prompt, chat)
    pair = checked.load()
    note(f"loaded in {time.perf_counter() - start:.1f} s")
    return pair


def make_decoder(
    pair: Pair, trees: TreeOptions, models: ModelOptions, max_length: int | None
) -> SpeculativeDecoder:
    """The speculative decoder asked for, or the autoregressive one for a pair without a draft."""
    from sequoia import AutoregressiveDecoder, SpeculativeDecoder

    if pair.draft is None:
        return AutoregressiveDecoder(pair, max_length, **models.engine)
    verifier = verifier_name(trees, pair.tree_file)
    return SpeculativeDecoder(pair, trees.tree, verifier, max_length, **models.engine)


def verifier_name(trees: TreeOptions, tree_file: str | None = None) -> str:
    """The verifier asked for, else the one the tree was tuned for, else the default."""
    from sequoia.tuned import tuned_verifier

    return trees.verifier or tuned_verifier(trees.tree, tree_file) or DEFAULT_VERIFIER


def chat_ids(pair: Pair | CheckedPair, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a conversation in the target's own template, ready for its answer."""
    tokenizer = pair.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"the tokenizer of {pair.target_name!r} has no chat template: it is a base model, "
            "give it plain text with `sequoia generate` and no --chat"
        )
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_ids(pair: Pair | CheckedPair, text: str, chat: bool) -> list[int]:
    """Token ids of one prompt, as the user message of a chat or as plain text."""
    from sequoia.inputs import encode_prompt

    prompt = chat_ids(pair, [{"role": "user", "content": text}]) if chat else text
    return encode_prompt(prompt, pair, pair.max_length)


def _draft_name(models: ModelOptions) -> str | None:
    if models.draft == NO_DRAFT:
        return None
    if models.draft is not None:
        return models.draft
    if models.target == EMBEDDED:
        return EMBEDDED
    from sequoia.pair import find_source

    find_source(models.target, None, "target")  # a target that is not there is the first fault
    raise ValueError(
        f"no draft model for {models.target!r}: give --draft MODEL (small, same tokenizer), or "
        f"--draft {NO_DRAFT} to decode without speculation"
    )


def _check_device(name: str | None) -> None:
    if name is None:
        return
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name!r} is no device: use cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {name!r} is not supported: use cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"--device {name!r}: torch finds {torch.cuda.device_count()} CUDA devices here "
            "(is this a CUDA build of torch?); use --device cpu"
        )


def _check_tree(trees: TreeOptions, params: SamplingParams | None) -> None:
    import verifiers
    from sequoia.inputs import resolve_tree, resolve_verifier

    verifier = verifiers.make(verifier_name(trees))
    if params is not None and not params.greedy and trees.verifier == "greedy":
        raise ValueError(
            f"--verifier greedy decodes at temperature 0 only, got {params.temperature}: "
            "add --temperature 0 or choose another verifier"
        )
    if trees.tree != "auto":
        _, tree = resolve_tree(trees.tree, None)  # type: ignore[arg-type]  # asked for auto only
        resolve_verifier(verifier, tree)


def _quiet_transformers() -> None:
    """No load reports or advice; bars only for a person; our own warnings as plain notes."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module=r"(sequoia|tree_builder|verifiers|model_fi)\b")
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    note(f"note: {message}")
