"""Which checkpoints the model can run, read from a config alone.

Everything that differs between Llama, Mistral, Qwen2 and Qwen3 as far as this package is concerned
stands here; the model itself knows no family.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers.activations import ACT2FN

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")


class Dims(NamedTuple):
    """The numbers a config says about its layers."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    activation: str
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool


class DraftHead(NamedTuple):
    """Extra keys of a draft's config (see `loading.load_model`)."""

    shares_target_embeddings: bool
    reduced_size: int  # 0: the head scores the whole vocabulary
    own: bool  # the checkpoint carries an `lm_head.weight`


def dims(config: Any) -> Dims:
    """Read a transformers config of a supported family."""
    heads = config.num_attention_heads
    llama, qwen2, qwen3 = (config.model_type == name for name in ("llama", "qwen2", "qwen3"))
    attention_bias = bool(getattr(config, "attention_bias", False)) and (llama or qwen3)
    return Dims(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab=config.vocab_size,
        eps=config.rms_norm_eps,
        activation=config.hidden_act,
        qkv_bias=attention_bias or qwen2,  # Qwen2 always has q/k/v biases, without saying so
        o_bias=attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)) and llama,
        qk_norm=qwen3,
        tied=bool(config.tie_word_embeddings),
    )


def draft_head(config: Any) -> DraftHead:
    """Read the keys by which a draft declares that it borrows from its target.

    Raises:
        ValueError: the keys contradict each other.
    """
    shares = bool(getattr(config, "shares_target_embeddings", False))
    reduced = int(getattr(config, "reduced_head_size", 0) or 0)
    tied = bool(config.tie_word_embeddings)
    if shares and tied:
        raise ValueError(
            "config says both shares_target_embeddings and tie_word_embeddings: the embeddings"
            " are the target's, so tie_word_embeddings must be false"
        )
    if not 0 <= reduced <= config.vocab_size:
        raise ValueError(f"reduced_head_size {reduced} is not within 0 .. {config.vocab_size}")
    own = bool(getattr(config, "own_head", False)) if shares else not tied
    return DraftHead(shares, reduced, own)


def rope_parameters(config: Any) -> dict[str, Any]:
    """The rope description of either config generation, always with `rope_type`.

    transformers 5 calls it `rope_parameters`, older ones `rope_scaling` (with `rope_type` or
    `type`) beside a `rope_theta`.
    """
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    return {**found, "rope_type": kind}


def sliding_window(config: Any) -> int | None:
    """Width of the sliding window some layer attends in, None if there is none."""
    window = getattr(config, "sliding_window", None)
    if window is None or config.model_type == "llama":  # transformers' Llama ignores the key
        return None
    if config.model_type == "mistral":
        return window
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return window if getattr(config, "use_sliding_window", False) else None
    return window if "sliding_attention" in layer_types else None


def check_config(config: Any, max_length: int | None = None) -> None:
    """Refuse, by name, what the model would not compute exactly. Needs no weights.

    Args:
        config: a transformers config.
        max_length: tokens the cache will hold; None for the config's `max_position_embeddings`.

    Raises:
        ValueError: names the setting that is not supported, and the way out where there is one.
    """
    kind = getattr(config, "model_type", None)
    for key in _EXPERT_KEYS:
        if getattr(config, key, None):
            raise ValueError(f"mixture-of-experts models are not supported ({kind}: {key} is set)")
    if kind not in SUPPORTED:
        raise ValueError(
            f"model type {kind!r} is not supported (supported: {', '.join(SUPPORTED)})"
        )
    architectures = getattr(config, "architectures", None) or []
    if architectures and not any(name.endswith("ForCausalLM") for name in architectures):
        raise ValueError(f"{', '.join(architectures)} is not a causal language model")
    if config.hidden_act not in ACT2FN:
        raise ValueError(f"activation {config.hidden_act!r} is not supported")
    sizes = dims(config)
    if sizes.heads % sizes.kv_heads:
        raise ValueError(f"{sizes.heads} query heads cannot share {sizes.kv_heads} KV heads")
    if sizes.head_dim % 2:
        raise ValueError(f"head_dim {sizes.head_dim} is odd")
    draft_head(config)
    _check_length(config, max_length or config.max_position_embeddings)


def _check_length(config: Any, max_length: int) -> None:
    """Settings that are right or wrong depending on how long sequences get."""
    limit = config.max_position_embeddings
    rope = rope_parameters(config)
    if rope["rope_type"] == "dynamic" and max_length > limit:
        raise ValueError(
            f"dynamic rope changes its frequencies beyond the original length {limit}, which keys"
            f" already in the cache cannot follow: use max_length <= {limit}"
        )
    if not 1 <= max_length <= limit:
        raise ValueError(
            f"max_length {max_length} is not within the model's 1 .. {limit}"
            " (max_position_embeddings)"
        )
    window = sliding_window(config)
    if window is not None and max_length > window:
        raise ValueError(
            f"sliding-window attention (window {window}) would take effect within max_length"
            f" {max_length} and is not supported: use max_length <= {window}"
        )
    if rope["rope_type"] not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise ValueError(f"rope type {rope['rope_type']!r} is not supported (supported: {known})")
    factor = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    if factor not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor {factor} is not supported")
