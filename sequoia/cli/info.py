"""``sequoia info``: what a request would run with, and what it costs in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sequoia.cli.options import ModelOptions, TreeOptions, model_options, tree_options

if TYPE_CHECKING:
    from sequoia.decoder import SpeculativeDecoder
    from sequoia.pair import Pair

MIB = 2**20


@click.command(short_help="Say what would run: models, device, tree, memory.")
@tree_options
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead.")
def info(trees: TreeOptions, models: ModelOptions, as_json: bool) -> None:
    """Load the models and say what was loaded: family, dtype, device, attention, tree, memory.

    \b
    Examples:
      sequoia info
      sequoia info --target ./Llama-3.1-8B --draft ./Llama-3.2-1B --max-length 4096
    """
    from sequoia.cli.session import load, make_decoder

    pair = load(models, trees)
    facts = describe(pair, make_decoder(pair, trees, models, models.max_length))
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def describe(pair: Pair, decoder: SpeculativeDecoder) -> dict[str, Any]:
    """Facts about a loaded pair and its decoder, in words, in the order they are shown."""
    from sequoia.provenance import collect, device_name

    facts = {"target": _model_line(pair.target_name, pair.target)}
    if pair.draft is not None:
        facts["draft"] = _model_line(pair.draft_name, pair.draft, borrows_from=pair.target)
    versions = collect()["versions"]
    return {
        **facts,
        "device": device_name(decoder.device),
        "attention": decoder.target.backend.name,
        "step": decoder.replay.description,
        "vocabulary": f"{pair.vocab_size} ids in common",
        "length": f"{decoder.max_length} tokens of prompt and answer together",
        "tree": _tree_line(decoder),
        "verifier": decoder.verifier.name,
        "memory": _memory_line(pair, decoder),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def models_line(pair: Pair) -> str:
    """Both models, their dtype and where they run, in one line."""
    import torch

    device = next(pair.target.parameters()).device
    names = pair.target_name if pair.draft is None else f"{pair.target_name} + {pair.draft_name}"
    where = f"{device}, {torch.get_num_threads()} threads" if device.type == "cpu" else f"{device}"
    return f"{names}, {_short(pair.target.compute_dtype)} on {where}"


def _model_line(name: str, model: Any, borrows_from: Any = None) -> str:
    config = model.config
    storages = _storages(model)
    if borrows_from is not None and borrows_from is not model:
        storages = {key: storages[key] for key in storages.keys() - _storages(borrows_from).keys()}
    size = sum(storages.values()) / model.compute_dtype.itemsize
    return (
        f"{name}: {config.model_type}, {size / 1e6:.0f}M parameters, "
        f"{config.num_hidden_layers} layers, {_short(model.compute_dtype)}"
    )


def _storages(model: Any) -> dict[int, int]:
    """Bytes by address. Tied, borrowed and fused parameters are views: each storage counts once."""
    stores = [parameter.untyped_storage() for parameter in model.parameters()]
    return {store.data_ptr(): store.nbytes() for store in stores}


def _tree_line(decoder: SpeculativeDecoder) -> str:
    from tree_builder import TreeTopology
    from tree_builder.draw import summary

    if isinstance(decoder.tree, TreeTopology):
        return f"{decoder.tree_name}: {summary(decoder.tree)}"
    return f"{decoder.tree_name}: at most {decoder.tree.size} nodes, chosen while drafting"


def _memory_line(pair: Pair, decoder: SpeculativeDecoder) -> str:
    from model_fi import predict_memory
    from sequoia.memory import available_memory

    parts, total = [], 0
    for role, runner in (("target", decoder.target), ("draft", decoder.draft)):
        if runner is None:
            continue
        model = pair.target if role == "target" else pair.draft
        assert model is not None
        slots = runner.cache.slots
        need = predict_memory(model.config, model.compute_dtype, slots, device=decoder.device)
        total += need["total"]
        cache = need["cache"] + need["rope"]
        parts.append(f"{role} {(need['total'] - cache) / MIB:.0f} + cache {cache / MIB:.0f}")
    free = available_memory(decoder.device) / MIB
    return f"{total / MIB:.0f} MiB predicted ({', '.join(parts)}); {free:.0f} MiB free now"


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
