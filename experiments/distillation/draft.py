"""The draft being trained: how it is built from its target, and the folder it is written to."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
HEAD_IDS = "head_token_ids"


@dataclass(frozen=True)
class DraftShape:
    """What to build. ``width`` None: the target's.

    ``share_embeddings``: the target's embeddings, frozen and not shipped (needs its width).
    ``head_tokens`` N > 0: the draft scores only N tokens, with a head of its own; 0: all of them.
    """

    layers: int = 2
    width: int | None = None
    share_embeddings: bool = True
    head_tokens: int = 0

    def check(self, target_config: Any) -> None:
        """ValueError, naming the value, for a shape that this target cannot give."""
        hidden, depth = target_config.hidden_size, target_config.num_hidden_layers
        if not 1 <= self.layers <= depth:
            raise ValueError(f"layers {self.layers} is outside [1, {depth}], the target's number")
        if not 0 <= self.head_tokens < target_config.vocab_size:
            raise ValueError(
                f"head_tokens {self.head_tokens} is outside [0, {target_config.vocab_size}); "
                "0 scores the whole vocabulary"
            )
        if self.width is None or self.width == hidden:
            return
        if self.share_embeddings:
            raise ValueError(
                f"width {self.width} cannot share the target's embeddings of width {hidden}; "
                "leave the width out or train own embeddings"
            )
        head_dim = _head_dim(target_config)
        if self.width % head_dim or self.width > hidden:
            raise ValueError(
                f"width {self.width} must be a multiple of the target's head size {head_dim} and "
                f"at most its width {hidden}"
            )


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def draft_config(target_config: Any, shape: DraftShape) -> Any:
    """The draft's config: the target's, with fewer layers and, for another width, fewer heads."""
    shape.check(target_config)
    config = copy.deepcopy(target_config)
    config.num_hidden_layers = shape.layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: shape.layers]
    if shape.width is not None and shape.width != config.hidden_size:
        head_dim = _head_dim(config)
        heads = shape.width // head_dim
        ratio = config.num_attention_heads // config.num_key_value_heads
        config.num_key_value_heads = heads // ratio if heads % ratio == 0 else heads
        config.intermediate_size = 64 * round(
            config.intermediate_size * shape.width / config.hidden_size / 64 + 0.49
        )
        config.num_attention_heads, config.head_dim = heads, head_dim
        config.hidden_size = shape.width
    config.tie_word_embeddings = not shape.share_embeddings and shape.head_tokens == 0
    config.shares_target_embeddings = shape.share_embeddings
    config.reduced_head_size = shape.head_tokens
    config.own_head = shape.share_embeddings and shape.head_tokens > 0
    return config


def plain_config(config: Any) -> dict[str, Any]:
    """The config as it is written: nothing of how the target was stored or called.

    Rope goes out in both generations of keys: transformers 4 reads ``rope_theta`` and
    ``rope_scaling`` and would fall back to its defaults, silently, on ``rope_parameters`` alone.
    """
    out = config.to_diff_dict() | {"model_type": config.model_type}
    for name in ("_name_or_path", "_model_name_or_path", "quantization_config", "use_cache"):
        out.pop(name, None)
    for name in ("hidden_size", "intermediate_size", "max_position_embeddings", "rms_norm_eps"):
        out[name] = getattr(config, name)
    for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"):
        out[name] = getattr(config, name)
    out["head_dim"] = _head_dim(config)
    rope = getattr(config, "rope_parameters", None)
    if rope and "rope_theta" in rope:
        out["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            out["rope_scaling"] = rope
    return out


def pick_layers(available: int, wanted: int) -> list[int]:
    """``wanted`` target layers, evenly spaced, first and last included (one layer: the first)."""
    if wanted == 1:
        return [0]
    return [round(i * (available - 1) / (wanted - 1)) for i in range(wanted)]


def principal_projection(embeddings: Tensor, width: int) -> Tensor:
    """[H, width]: the orthonormal directions that keep most of the embeddings' [V, H] energy."""
    table = embeddings.float()
    _, vectors = torch.linalg.eigh(table.T @ table)  # ascending
    return vectors[:, -width:].flip(-1)


class Draft(nn.Module):
    """A small causal model whose state is exactly what ships.

    ``forward(tokens [b, t], rows [A]) -> logits [A, N]``: ``rows`` are flat indices into the
    rectangle, N the tokens of the head (``head_ids`` [N], or the whole vocabulary when None).
    Rectangles are padded on the right, so causal attention needs no padding mask.
    """

    model: Any  # the target's own class of model body
    embed_tokens: nn.Parameter | None
    lm_head: nn.Parameter | None
    head_ids: Tensor | None

    def __init__(self, target: Any, shape: DraftShape, head_ids: Tensor | None = None):
        super().__init__()
        if (head_ids is None) != (shape.head_tokens == 0):
            raise ValueError(f"head_tokens {shape.head_tokens} needs as many head_ids")
        self.config = draft_config(target.config, shape)
        self.target_layers = pick_layers(target.config.num_hidden_layers, shape.layers)
        embeddings = target.get_input_embeddings().weight.detach()
        head = target.get_output_embeddings().weight.detach()
        skeleton = copy.deepcopy(self.config)
        skeleton.vocab_size = 1  # its embeddings are replaced below
        skeleton.pad_token_id = skeleton.bos_token_id = skeleton.eos_token_id = None
        self.model = type(target)(skeleton).model.float()
        if self.config.hidden_size == target.config.hidden_size:
            for own, source in zip(self.model.layers, self.target_layers, strict=True):
                own.load_state_dict(target.model.layers[source].state_dict())
            self.model.norm.load_state_dict(target.model.norm.state_dict())
        else:
            projection = principal_projection(embeddings, self.config.hidden_size)
            embeddings, head = embeddings.float() @ projection, head.float() @ projection
        shared = self.config.shares_target_embeddings
        own_rows = None if shared else embeddings.float().clone()
        self.model.embed_tokens = nn.Identity()
        self.embed_tokens = None if own_rows is None else nn.Parameter(own_rows)
        self._shared = [embeddings.float(), head.float()] if own_rows is None else []
        rows = head[head_ids].float() if head_ids is not None else None
        self.lm_head = None if rows is None else nn.Parameter(rows.clone())
        self.register_buffer("head_ids", head_ids)

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        table = self._table(0) if self.embed_tokens is None else self.embed_tokens
        embedded = nn.functional.embedding(tokens, table)
        hidden = self.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        if self.lm_head is not None:
            head: Tensor = self.lm_head
        else:
            head = self._table(1) if self.embed_tokens is None else self.embed_tokens
        return nn.functional.linear(hidden.flatten(0, 1)[rows], head)

    def _table(self, which: int) -> Tensor:
        """The target's embeddings (0) or head (1): kept off the module's state, moved once."""
        device = self.model.norm.weight.device
        if self._shared[which].device != device:
            self._shared[which] = self._shared[which].to(device)
        return self._shared[which]

    def cut_head(self, keep: Tensor) -> None:
        """Keep only the rows ``keep`` [M] (ascending) of a head of its own."""
        assert self.lm_head is not None
        assert self.head_ids is not None
        self.lm_head = nn.Parameter(self.lm_head.detach()[keep])
        self.head_ids = self.head_ids[keep]
        self.config.reduced_head_size = len(keep)

    def shipped_tensors(self) -> dict[str, Tensor]:
        """What goes to disk, by the names the draft loader expects."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.embed_tokens is not None:
            tensors[EMBEDDING] = self.embed_tokens
        if self.lm_head is not None:
            tensors[HEAD] = self.lm_head
        if self.head_ids is not None:
            tensors[HEAD_IDS] = self.head_ids
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}

    def save(self, folder: Path, dtype: torch.dtype = torch.bfloat16) -> int:
        """Write ``config.json`` and ``model.safetensors``; returns the bytes of the weights."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in self.shipped_tensors().items()
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)  # safetensors leaves it to its owner alone
        architecture = type(self.model).__name__.replace("Model", "ForCausalLM")
        config = plain_config(self.config) | {
            "architectures": [architecture],
            "dtype": str(dtype).removeprefix("torch."),
        }
        text = json.dumps(config, indent=2, sort_keys=True)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
        return (folder / "model.safetensors").stat().st_size

    def load(self, folder: Path) -> None:
        """Take the weights of a folder this class wrote; ValueError when they do not fit."""
        tensors = read_tensors(folder)
        own = self.shipped_tensors()
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in tensors.items()}:
            raise ValueError(f"the draft in {str(folder)!r} has another shape than asked for")
        names = {EMBEDDING: "embed_tokens", HEAD: "lm_head", HEAD_IDS: "head_ids"}
        own_state = self.state_dict()
        with torch.no_grad():
            for name, value in tensors.items():
                own_state[names.get(name, name)].copy_(value)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a draft's folder; ValueError where there are none."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ValueError(f"no draft in {str(folder)!r}: it has no model.safetensors")
    return load_file(path)


def frequent_tokens(counts: Tensor, wanted: int) -> Tensor:
    """The ``wanted`` most frequent ids, ascending; ties go to the lower id. [V] -> [wanted]."""
    order = torch.sort(counts, descending=True, stable=True).indices[:wanted]
    return order.sort().values
