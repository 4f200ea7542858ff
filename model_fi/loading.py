"""Checkpoints into the model: what is loaded, what is refused.

Weights come through transformers' own `from_pretrained`, so Hub ids, folders, shards, GGUF files,
quantised checkpoints and device maps load as they do there. A checkpoint must fit the model key
for key: what is missing, unexpected or of another shape is an error, never a random number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_module
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from model_fi.families import SUPPORTED, check_config, draft_head
from model_fi.llama import LlamaForCausalLM_FI
from model_fi.memory import default_device
from model_fi.rope import rope_frequencies

_LIBRARY_ERRORS = (UnpicklingError, SafetensorError)  # neither is a ValueError
_UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, ImportError, *_LIBRARY_ERRORS)
_GGUF_HEADER = 64 << 20  # bytes within which a GGUF file names its tensors, vocabulary included


def load_model(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    device_map: Any = None,
    max_length: int | None = None,
    gguf_file: str | None = None,
    target: LlamaForCausalLM_FI | None = None,
    config: Any = None,
    **kwargs: Any,
) -> LlamaForCausalLM_FI:
    """Load a Llama-family checkpoint, ready to run.

    A draft may borrow from its target. Its config then says `shares_target_embeddings` (its file
    holds no embeddings; without `own_head` it uses the target's head too), and possibly
    `reduced_head_size` (only the ids in the file's `head_token_ids` are scored, all others are
    -inf: exact, since the draft then never proposes them; cf. FR-Spec, arXiv 2502.14856).

    Args:
        name_or_path: Hub id, folder, or GGUF file.
        dtype: a dtype, its name, or `auto`: the checkpoint's on CUDA, and on a CPU fp32 unless the
            checkpoint is bf16 (or GGUF) and the processor computes in bf16.
        device: where to; None for CUDA if there is one. Not together with `device_map`.
        device_map: as in transformers.
        max_length: longest sequence that will be run (picks the rope table of longrope models);
            None for the config's `max_position_embeddings`.
        gguf_file: a GGUF file inside `name_or_path`.
        target: the loaded target, for a draft that borrows from it.
        config: what `load_config` read, to spare reading it again (seconds for a GGUF file).
        kwargs: handed to `from_pretrained` (`revision`, `token`, `subfolder`, ...).

    Raises:
        ValueError: the checkpoint cannot be read or is not supported (see `check_config`), keys do
            not match, or the draft does not fit its target.
    """
    if kwargs.pop("trust_remote_code", False):
        raise ValueError("trust_remote_code is not supported: the model must be a known family")
    if device is not None and device_map is not None:
        raise ValueError("give either device or device_map, not both")
    folder, gguf_file = _split_gguf(name_or_path, gguf_file)
    config = config or load_config(folder, gguf_file=gguf_file, **kwargs)
    max_length = max_length or config.max_position_embeddings
    check_config(config, max_length)
    borrows = draft_head(config).shares_target_embeddings
    if borrows and target is None:
        raise ValueError(f"{folder}: this draft shares its target's embeddings: give target=")
    if device_map is None:
        where = default_device(device)
        device_map = None if where.type == "cpu" else {"": where}
    else:
        where = default_device(None)
    chosen = resolve_dtype(dtype, config, where, is_gguf=gguf_file is not None)
    if gguf_file is not None:
        _refuse_lost_rope(folder, gguf_file, kwargs)
    model = _load_weights(folder, config, chosen, device_map, gguf_file, kwargs)
    _refuse_offload(folder, model)
    return prepare_model(model, max_length, target if borrows else None)


def prepare_model(
    model: LlamaForCausalLM_FI, max_length: int, target: LlamaForCausalLM_FI | None = None
) -> LlamaForCausalLM_FI:
    """Finish a model whose weights are in place: head, rope frequencies, fused layout."""
    # Accelerate's hooks move inputs to each module's device; the forward pass does that itself.
    remove_hook_from_module(model, recurse=True)
    _attach_head(model, target)
    model.rope = rope_frequencies(model.config, max_length)
    model.max_length = max_length
    model.requires_grad_(False)
    model.fuse()
    return model.eval()


def load_config(
    name_or_path: str | os.PathLike[str], *, gguf_file: str | None = None, **kwargs: Any
) -> Any:
    """Read a checkpoint's config, of either generation, without its weights.

    Raises:
        ValueError: it cannot be read, or needs code of its own (`trust_remote_code`).
    """
    folder, gguf_file = _split_gguf(name_or_path, gguf_file)
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {}
    is_path = os.path.isabs(folder) or folder.startswith((".", "~")) or folder.count("/") > 1
    if is_path and not os.path.isdir(folder):
        raise ValueError(f"cannot load {folder}: no such folder")
    if not gguf_file:
        _refuse_pickles(folder)
    with _readable(folder):
        if not gguf_file:
            raw, _ = PretrainedConfig.get_config_dict(folder, **kwargs)
            kind = raw.get("model_type")
            if "auto_map" in raw and kind not in SUPPORTED:
                raise ValueError(f"model type {kind!r} needs trust_remote_code: not supported")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **options, **kwargs)
    return _old_generation(config)


def resolve_dtype(
    dtype: str | torch.dtype, config: Any, device: torch.device, *, is_gguf: bool = False
) -> torch.dtype:
    """The dtype that `dtype` means for this checkpoint on this device (see `load_model`).

    Raises:
        ValueError: not the name of a floating-point dtype.
    """
    if dtype != "auto":
        found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise ValueError(f"dtype {dtype!r} is not one of auto, float32, bfloat16, float16")
        return found
    stored = getattr(config, "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    if is_gguf or stored is None:
        stored = torch.bfloat16 if is_gguf else torch.float32
    if device.type != "cpu":
        return stored
    return stored if stored == torch.bfloat16 and cpu_computes_bf16() else torch.float32


def cpu_computes_bf16() -> bool:
    """Whether this processor multiplies bf16 natively (elsewhere it is slower than fp32)."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def _split_gguf(
    name_or_path: str | os.PathLike[str], gguf_file: str | None
) -> tuple[str, str | None]:
    """A path to a GGUF file becomes its folder and its name, as transformers wants them."""
    path = os.fspath(name_or_path)
    if gguf_file is None and path.endswith(".gguf"):
        folder, name = os.path.split(path)
        return folder or ".", name
    return path, gguf_file


def _refuse_pickles(folder: str) -> None:
    """Weights that are there as pickles only are not read: a pickle can run code."""
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    pickled = [name for name in files if name.startswith("pytorch_model") and name.endswith(".bin")]
    if pickled and not any(name.endswith(".safetensors") for name in files):
        raise ValueError(
            f"cannot load {folder}: its weights are a pickle ({pickled[0]}), which is not read:"
            " save the model as safetensors (transformers' save_pretrained)"
        )


def _refuse_lost_rope(folder: str, gguf_file: str, kwargs: dict[str, Any]) -> None:
    """GGUF files of Llama 3.x scale their rope by a tensor that transformers leaves behind."""
    with _readable(folder):
        options = {k: kwargs[k] for k in ("revision", "token", "subfolder") if k in kwargs}
        path: Any = cached_file(folder, gguf_file, **options)
    with open(path, "rb") as file:
        header = file.read(_GGUF_HEADER)
    if b"rope_freqs.weight" in header:
        raise ValueError(
            f"{gguf_file} scales its rope by rope_freqs.weight, which transformers does not read:"
            " use the model's safetensors checkpoint"
        )


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn what transformers raises for an unreadable checkpoint into one line that names it."""
    try:
        yield
    except _UNREADABLE as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"cannot load {name}: {lines[0]}") from error


def _old_generation(config: Any) -> Any:
    """Give a config written by transformers 5 the names that transformers 4 reads.

    Without this, 4.x silently falls back to its default rope.
    """
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and hasattr(config, "rope_theta") and "rope_theta" in rope:
        config.rope_theta = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config.rope_scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    return config


def _load_weights(
    folder: str,
    config: Any,
    dtype: torch.dtype,
    device_map: Any,
    gguf_file: str | None,
    kwargs: dict[str, Any],
) -> LlamaForCausalLM_FI:
    """`from_pretrained`, with every mismatch an error."""
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {"use_safetensors": True}
    options.update(kwargs)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # what it would warn of, we raise
    try:
        with _readable(folder):
            loaded: Any = LlamaForCausalLM_FI.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                device_map=device_map,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # to be named below
                **options,
            )
    finally:
        transformers_logging.set_verbosity(verbosity)
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = sorted(str(key) for key in report[kind])
        if keys:
            shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            raise ValueError(f"cannot load {folder}: {kind.replace('_', ' ')}: {shown}")
    if report["error_msgs"]:
        raise ValueError(f"cannot load {folder}: {report['error_msgs'][0]}")
    return model


def _refuse_offload(folder: str, model: LlamaForCausalLM_FI) -> None:
    """A device map may spread layers over accelerators, but not park them on CPU or disk."""
    parked = [name for name, p in model.named_parameters() if p.device.type == "meta"]
    if parked:
        raise ValueError(
            f"{folder} does not fit the devices: {len(parked)} tensors ({parked[0]}, ...) would be"
            " offloaded, which is not supported: use a smaller model or dtype, or more devices"
        )


def _attach_head(model: LlamaForCausalLM_FI, target: LlamaForCausalLM_FI | None) -> None:
    """Give a draft what it borrows, and a reduced head its rows."""
    ids: Any = getattr(model, "head_token_ids", None)
    if ids is not None:
        inside = bool((ids >= 0).all() and (ids < model.dims.vocab).all())
        if not inside or not bool((ids.diff() > 0).all()):
            raise ValueError("head_token_ids must be strictly increasing ids of the vocabulary")
    if target is not None:
        _check_fit(model, target)
        model.model.embed_tokens = target.model.embed_tokens
    if model.lm_head is not None:
        return
    source: Any = model.model.embed_tokens if target is None else target.lm_head
    if ids is None:
        model.lm_head, model.borrows_head = source, True
        model.head = target.head if target is not None else None
        return
    if type(source) not in (nn.Linear, nn.Embedding):
        raise ValueError(f"a reduced head needs dense rows, not {type(source).__name__}")
    rows = source.weight.detach().index_select(0, ids.to(source.weight.device))
    head = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    head.weight = nn.Parameter(rows.to(model.compute_dtype), requires_grad=False)
    model.lm_head = head


def _check_fit(model: LlamaForCausalLM_FI, target: LlamaForCausalLM_FI) -> None:
    """Refuse a target that the draft was not made for."""
    for name in ("hidden", "vocab"):
        ours, theirs = getattr(model.dims, name), getattr(target.dims, name)
        if ours != theirs:
            raise ValueError(f"the draft's {name} size {ours} is not its target's {theirs}")
    if model.compute_dtype != target.compute_dtype:
        raise ValueError(
            f"the draft is {model.compute_dtype}, its target {target.compute_dtype}:"
            " embeddings can only be shared in one dtype"
        )
