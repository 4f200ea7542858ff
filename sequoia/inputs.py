"""What callers hand in, turned into what the decoder needs, or refused with a clear error."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import verifiers
from sequoia.tuned import PREFIX, Tuned
from tree_builder import TreeTopology, load_tree
from tree_builder.adaptive import AdaptiveTree, Tree
from verifiers.base import Uniforms, Verdict, check_members
from verifiers.draws import inverse_cdf
from verifiers.probs import faulty

if TYPE_CHECKING:
    from sequoia.pair import CheckedPair, Pair

FALLBACK_TREE = "chain:5"


def encode_prompt(prompt: Any, pair: Pair | CheckedPair, max_length: int) -> list[int]:
    """Text, list of ids, or a [n] or [1, n] tensor -> checked token ids.

    Text gets the special tokens its tokenizer adds for plain text, but never a second one: what
    a chat template has already written is not written again.
    """
    ids = _encode_text(prompt, pair.tokenizer) if isinstance(prompt, str) else _flatten(prompt)
    if not ids:
        raise ValueError("the prompt is empty: give at least one token")
    limit = pair.vocab_size
    for position, token in enumerate(ids):
        if not 0 <= token < limit:
            raise ValueError(
                f"prompt token {token} at position {position} is outside the vocabulary "
                f"[0, {limit})"
            )
    if len(ids) >= max_length:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, but max_length {max_length} must also hold "
            "at least one new one: shorten the prompt or raise max_length"
        )
    return ids


def _encode_text(text: str, tokenizer: Any) -> list[int]:
    if tokenizer is None:
        raise ValueError("this pair has no tokenizer: give token ids instead of text")
    bos = tokenizer.bos_token
    templated = bool(bos) and text.startswith(bos)
    return tokenizer(text, add_special_tokens=not templated)["input_ids"]


def _flatten(prompt: Any) -> list[int]:
    try:
        ids = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"a prompt is text, a list of ids or a [n] or [1, n] tensor, got {_described(prompt)}"
        ) from None
    if ids.numel() and (ids.is_floating_point() or ids.dtype == torch.bool):
        raise ValueError(f"prompt ids must be integers, got {ids.dtype}")
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dim() != 1:
        raise ValueError(
            f"one prompt at a time: expected ids of shape [n] or [1, n], got {tuple(ids.shape)} "
            "(batch size 1 only; loop over the prompts)"
        )
    return ids.tolist()


def _described(prompt: Any) -> str:
    if isinstance(prompt, Mapping):
        return f"a {type(prompt).__name__}: give its ['input_ids']"
    if isinstance(prompt, list | tuple):
        return f"a list of {type(prompt[0]).__name__} (batch size 1 only; loop over the prompts)"
    return repr(prompt)


def stop_tokens(stop: tuple[str, ...], tokenizer: Any) -> tuple[int, ...]:
    """Ids of those stop strings that are special tokens, which the text leaves out.

    ValueError for stop strings without a tokenizer: there is no text to find them in.
    """
    if stop and tokenizer is None:
        raise ValueError(f"this pair has no tokenizer: stop={stop!r} cannot be found, give ids")
    added = getattr(tokenizer, "added_tokens_decoder", {}) if stop else {}
    return tuple(i for i, token in added.items() if token.special and token.content in stop)


def resolve_tree(tree: str | Tree, pair: Pair) -> tuple[str, Tree]:
    """A tree and its name in reports. ``auto`` is the pair's own choice, if it has one, and
    ``auto:FILE`` that of a result of ``sequoia tune``."""
    if isinstance(tree, TreeTopology):
        return f"{tree.size} nodes, {tree.num_levels} levels", tree
    if isinstance(tree, AdaptiveTree):
        return str(tree), tree
    if str(tree).startswith("adaptive:"):
        return str(tree), AdaptiveTree.parse(str(tree))
    if tree == "auto":
        if pair.tree_file is not None:
            return f"auto ({Path(pair.tree_file).name})", load_tree(pair.tree_file)
        if pair.draft is not None:
            warnings.warn(
                f"no tree has been chosen for this pair: using {FALLBACK_TREE}. "
                "`sequoia tune` finds the best one for your models and machine.",
                stacklevel=3,
            )
        return FALLBACK_TREE, load_tree(FALLBACK_TREE)
    if str(tree).startswith(PREFIX):
        tuned = Tuned.load(str(tree).removeprefix(PREFIX))
        others = tuned.other_models(pair) if pair is not None else []
        if others:
            warnings.warn(
                f"{tree} was chosen for other models ({', '.join(others)}): exact all the same, "
                "but `sequoia tune` may find a faster tree for this pair.",
                stacklevel=3,
            )
        return str(tree), tuned.tree
    return str(tree), load_tree(tree)


def resolve_verifier(verifier: Any, tree: Tree) -> Any:
    """A name of ``verifiers.NAMES`` or an object; refused here if it cannot take the tree."""
    chosen = verifiers.make(verifier) if isinstance(verifier, str) else verifier
    check_members(chosen)
    if isinstance(tree, TreeTopology):
        verifiers.check_tree(chosen, tree)
    else:
        check_adaptive(chosen, tree)
    return chosen


def check_adaptive(verifier: Any, tree: AdaptiveTree) -> None:
    """Refuse an adaptive tree that this verifier cannot take, or not without a biased text."""
    most = verifier.max_children
    if most is not None and tree.max_children > most:
        raise ValueError(
            f"{tree} has {tree.max_children} children per expanded node, but {verifier.name} "
            f"takes at most {most}"
        )
    if tree.prunes and not getattr(verifier, "any_drafts", False):
        raise ValueError(
            f"{tree} removes drawn children by their probability, which is lossless only for a "
            f"rule that takes any set of drafts (target_match), not for {verifier.name}: leave "
            f"out the budget, or use verifier target_match"
        )


class Ancestral:
    """The verifier of a tree that drafts nothing: the bonus is drawn from the target's own row."""

    name = "autoregressive"
    max_children = 0

    def propose(self, rows: Any, num_children: Any, uniforms: torch.Tensor) -> Any:
        raise ValueError("autoregressive decoding draws no children")

    def verify(
        self, tree: Any, drafted: Any, target_rows: Any, draft_rows: Any, uniforms: Uniforms
    ) -> Verdict:
        probs = target_rows.probs  # [1, V]
        root = tree.parents  # [1], node 0
        bonus = inverse_cdf(probs, uniforms.bonus.view(1))
        return Verdict(root, root[0], bonus[0], faulty(probs)[0].long())


def effective_verifier(verifier: Any, tree: Tree, greedy: bool) -> Any:
    """At temperature 0 every rule accepts by argmax, and the greedy draw is the best one."""
    if tree.size == 1:
        return Ancestral()
    return verifiers.make("greedy") if greedy else verifier


def verifier_label(verifier: Any, greedy: bool) -> str:
    if greedy and verifier.name != "greedy":
        return f"greedy ({verifier.name} at T = 0)"
    return verifier.name


def check_max_length(max_length: int | None, pair: Pair) -> int:
    """Tokens of prompt and answer together: what is asked for, within what the models take."""
    limit = pair.max_length
    if max_length is None:
        return limit
    if not 2 <= max_length <= limit:
        raise ValueError(
            f"max_length {max_length} is outside [2, {limit}], the positions both models have"
        )
    return max_length


def check_depth(tree: Tree, pair: Pair) -> None:
    """Refuse a tree that the models' length never has room for."""
    if tree.num_levels > pair.max_length:
        raise ValueError(
            f"the tree has {tree.num_levels} levels, but a text has {pair.max_length} tokens at "
            f"most: choose a tree of at most {pair.max_length} levels"
        )


def fresh_seed() -> int:
    """A seed from torch's global generator, so that ``torch.manual_seed`` governs it."""
    return int(torch.randint(2**62, ()))
